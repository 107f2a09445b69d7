"""What a request leaves to the cache: as much as the draft has KV for, within an allowance."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.loop.draft_prefixes import SHARE_ALLOWED, DraftPrefixes

WIDTH = 15


def test_what_was_never_behind_is_kept_whole() -> None:
    assert DraftPrefixes().end("a", 300, 200, 0) == 300


def test_a_tail_that_the_draft_lacks_is_left_out_and_a_catch_up_keeps_it() -> None:
    prefixes = DraftPrefixes()
    prefixes.fall_behind("ab", (100, 200))
    prefixes.fall_behind("ab", (110, 210))  # still behind: it counts from where it began
    assert prefixes.end("a", 112, 50, 0) == 100
    prefixes.catch_up("b", (12,), WIDTH)
    assert prefixes.end("b", 212, 50, 0) == 212


def test_a_catch_up_that_does_not_reach_back_leaves_a_gap_that_no_later_one_closes() -> None:
    prefixes = DraftPrefixes()
    prefixes.fall_behind("ab", (100, 200))
    prefixes.catch_up("ab", (16, 15), WIDTH)
    prefixes.fall_behind("ab", (120, 220))
    prefixes.catch_up("ab", (5, 5), WIDTH)
    assert prefixes.end("a", 130, 50, 0) == 100
    assert prefixes.end("b", 230, 50, 0) == 230


def test_what_is_given_up_is_a_gap() -> None:
    prefixes = DraftPrefixes()
    prefixes.fall_behind("a", (100,))
    prefixes.leave_gaps()
    prefixes.catch_up("a", (1,), WIDTH)
    assert prefixes.end("a", 130, 50, 0) == 100


def test_who_left_the_batch_is_forgotten() -> None:
    prefixes = DraftPrefixes()
    prefixes.fall_behind("a", (100,))
    prefixes.leave_gaps()
    prefixes.fall_behind("b", (50,))
    prefixes.fall_behind("ab", (10, 60))
    prefixes.catch_up("ab", (5, 5), WIDTH)
    assert prefixes.end("a", 300, 200, 0) == 300


def test_rows_that_are_given_away_again_begin_anew() -> None:
    """A flush lets their names come back."""
    prefixes = DraftPrefixes()
    prefixes.fall_behind("ab", (100, 100))
    prefixes.leave_gaps()
    prefixes.forget("a")
    assert [prefixes.end(row, 300, 200, 0) for row in "ab"] == [300, 100]
    prefixes.fall_behind("a", (300,))
    prefixes.catch_up("a", (5,), WIDTH)
    assert prefixes.end("a", 310, 200, 0) == 310


def test_what_others_build_on_already_is_never_left_out() -> None:
    """The host would free it under them."""
    prefixes = DraftPrefixes()
    prefixes.fall_behind("ab", (100, 100))
    assert prefixes.end("a", 300, 200, 99) == 100
    assert prefixes.end("b", 300, 200, 100) == 300


def test_without_allowance_a_tail_is_kept_and_what_was_drafted_for_earns_some() -> None:
    prefixes = DraftPrefixes(most_allowed=100)
    prefixes.fall_behind("abc", (100, 100, 100))
    assert prefixes.end("a", 180, 80, 0) == 100
    assert prefixes.end("b", 180, 80, 0) == 180  # 20 are left
    earned = prefixes.end("d", 5000, round(60 / SHARE_ALLOWED), 0)
    assert earned == 5000
    assert prefixes.end("c", 180, 80, 0) == 100


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=60))
def test_no_more_is_left_out_than_was_allowed_and_earned(ended: list[tuple[int, int]]) -> None:
    prefixes, left_out, earned = DraftPrefixes(most_allowed=500), 0, 0.0
    for request, (num_whole, num_more) in enumerate(ended):
        prefixes.fall_behind((request,), (num_whole,))
        num_tokens = num_whole + num_more
        kept = prefixes.end(request, num_tokens, num_tokens, 0)
        assert kept in (num_whole, num_tokens)
        left_out += num_tokens - kept
        earned += SHARE_ALLOWED * num_whole
        assert left_out <= 500 + earned
