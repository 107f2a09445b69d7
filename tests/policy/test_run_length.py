"""How long zero-step rounds run: by what they take a token, ends of requests included."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.policy.probing import Probe
from sglang_adaptive_spec.policy.run_length import LENGTHS, MOST_WATCHED, NUM_NEWEST, RunLengths
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, RoundTime
from tests.policy.rounds import goodput

RUNS = DEFAULTS.run_length
SEEDED_MS = 1.0


def batch(size: int = 4, most: int = 8) -> DecodeBatch:
    return DecodeBatch(size, tuple(range(size)), most_decodes=most)


def timed(length: int, ms: float, size: int = 4) -> RoundTime:
    return RoundTime(Plan(PLAIN_TIER, length), size, 100, ms)


def serve(
    runs: RunLengths,
    round_ms: float,
    decode_ms: float,
    num_rounds: int = 60,
    most: int = 8,
    is_look: bool = False,
) -> list[int]:
    """Serves rounds that take a fixed time and one for each decode; returns their lengths."""
    lengths = []
    for _ in range(num_rounds):
        length = runs.choose(batch(most=most), SEEDED_MS, SEEDED_MS, is_look)
        runs.learn(timed(length, round_ms + length * decode_ms), SEEDED_MS)
        lengths.append(length)
    return lengths


def test_the_longest_is_looked_at_first_and_stays_where_the_cpu_bounds_rounds() -> None:
    lengths = serve(RunLengths(), round_ms=1.3, decode_ms=1.0)
    assert lengths[: RUNS.known_rounds] == [8] * RUNS.known_rounds
    assert set(lengths[: len(LENGTHS) * RUNS.known_rounds]) == set(LENGTHS)  # each was tried
    assert set(lengths[len(LENGTHS) * RUNS.known_rounds :]) == {8}


def test_a_look_tries_the_longest_and_no_other_length() -> None:
    """Around its decodes a round takes as long as three of them, as among ranks on one CPU."""
    runs = RunLengths()
    assert set(serve(runs, round_ms=3.0, decode_ms=1.0, is_look=True)) == {8}
    assert set(serve(runs, round_ms=3.0, decode_ms=1.0)) == set(LENGTHS)


def test_a_length_in_doubt_is_timed_in_looks_too() -> None:
    runs = RunLengths()
    for ms in (1.40, 1.42, 1.38, 1.40):
        runs.learn(timed(1, ms), SEEDED_MS)
    for ms in (0.75, 0.95, 1.5, 1.45):
        runs.learn(timed(8, 8 * ms), SEEDED_MS)
    assert serve(runs, round_ms=0.45, decode_ms=0.95, is_look=True)[-1] == 8


def test_the_policy_says_when_a_round_is_a_look() -> None:
    policy = goodput(ms=lambda *_: SEEDED_MS, slots={1: (0, 3)})
    policy.costs.round_ms = lambda *_: SEEDED_MS
    for ms in (1.0, 1.0, 1.0, 1.0):
        policy.runs.learn(timed(8, 8 * ms), SEEDED_MS)
    assert policy.run_length(batch()) == 4  # a stay tries the next
    policy.prober.probe = Probe(PLAIN_TIER, 4, 4, 1.0, 1.0, 2)
    assert policy.run_length(batch()) == 8


def test_rounds_are_single_where_a_run_brings_nothing() -> None:
    lengths = serve(RunLengths(), round_ms=0.0, decode_ms=2.0)
    assert lengths[-1] == 1


def test_a_length_that_wins_by_noise_is_not_taken() -> None:
    """Rounds scatter by 8 %, and a run gains nothing: means of 16 often differ by 2 %."""
    lengths = []
    for seed in range(6):
        rng, runs = random.Random(seed), RunLengths()
        for _ in range(2000):
            lengths.append(runs.choose(batch(most=2), SEEDED_MS, SEEDED_MS))
            ms = lengths[-1] * 5.0 * rng.gauss(1.0, 0.08)
            runs.learn(timed(lengths[-1], ms), SEEDED_MS)
    assert lengths.count(2) < 0.05 * len(lengths)


def test_a_length_timed_at_shorter_contexts_does_not_win_by_them() -> None:
    """Rounds take longer as contexts grow, by 30 % here, and a run gains nothing."""
    runs, lengths = RunLengths(), []
    rng = random.Random(1)
    for number in range(600):
        seeded_ms = 5.0 * (1 + 0.3 * (number % 100) / 100)
        length = runs.choose(batch(most=2), seeded_ms, seeded_ms)
        ms = length * seeded_ms * rng.gauss(1.0, 0.01)
        runs.learn(timed(length, ms), seeded_ms)
        lengths.append(length)
    assert lengths.count(2) <= RUNS.window + 1


def test_a_length_in_doubt_is_timed_until_a_window_tells() -> None:
    """A run saves 5 %, rounds scatter by 8 %: four times of each tell nothing yet."""
    for seed in range(20):
        runs, rng, num_runs = RunLengths(), random.Random(seed), 0
        for _ in range(400):
            length = runs.choose(batch(most=2), SEEDED_MS, SEEDED_MS)
            ms = (0.5 + length * 4.5) * rng.gauss(1.0, 0.08)
            runs.learn(timed(length, ms), SEEDED_MS)
            num_runs += length == 2
        assert num_runs >= RUNS.window


def test_each_step_up_must_pay() -> None:
    """Half a ms on 8: two decodes gain 3 %, more of them too little each."""
    assert serve(RunLengths(), round_ms=0.5, decode_ms=2.0, most=2)[-1] == 2
    gains = 1 - (2.0 + 0.1 / 8) / 2.1
    assert gains > RUNS.min_gain  # all of it together does
    assert serve(RunLengths(), round_ms=0.1, decode_ms=2.0)[-1] in (2, 4, 8)
    assert serve(RunLengths(), round_ms=0.03, decode_ms=2.0)[-1] == 1


def test_a_run_takes_no_longer_than_a_stream_may_wait() -> None:
    slow = RUNS.max_run_ms / 3
    lengths = serve(RunLengths(), round_ms=0.5, decode_ms=slow)
    assert lengths[-1] == 2
    assert max(lengths[RUNS.known_rounds :]) <= 2  # as soon as anything is known
    assert RunLengths().choose(batch(), SEEDED_MS, expected_ms=RUNS.max_run_ms) == 1


def test_a_length_that_was_not_timed_is_bounded_by_what_a_decode_takes_now() -> None:
    for slower, most in ((1, 4), (2, 2), (5, 1)):
        seeded_ms = RUNS.max_run_ms / 4
        assert RunLengths().choose(batch(), seeded_ms, slower * seeded_ms) == most


def test_what_ended_requests_lose_is_counted() -> None:
    runs = RunLengths()
    serve(runs, round_ms=0.2, decode_ms=1.0)
    assert runs.choose(batch(), SEEDED_MS, SEEDED_MS) > 1
    runs.count_tokens(20)
    runs.count_ends(("a", "b", "c"), ("c", "d"))  # one in ten tokens is a request's last
    assert runs.choose(batch(), SEEDED_MS, SEEDED_MS) == 1
    runs.count_tokens(RUNS.end_memory)
    runs.count_tokens(RUNS.end_memory)
    assert runs.choose(batch(), SEEDED_MS, SEEDED_MS) > 1


def test_lengths_are_tried_anew_now_and_then() -> None:
    runs = RunLengths()
    assert serve(runs, round_ms=0.0, decode_ms=2.0)[-1] == 1
    lengths = serve(runs, round_ms=1.3, decode_ms=1.0, num_rounds=2 * RUNS.retry_rounds)
    assert lengths[-1] == 8


def test_sizes_that_pad_to_another_power_of_two_are_apart() -> None:
    """A loop of 4 clients runs 3 requests whenever one of them is about to ask again."""
    runs = RunLengths()
    serve(runs, round_ms=0.0, decode_ms=2.0)
    assert [runs.choose(batch(size), SEEDED_MS, SEEDED_MS) for size in (3, 4, 5)] == [1, 1, 8]
    shown = runs.describe()["ms_per_decode"]
    assert shown == {"3-4": {"1": 2.0, "2": 2.0, "4": 2.0, "8": 2.0}}


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.sampled_from(LENGTHS), st.floats(0.01, 100.0)), max_size=60),
)
def test_never_more_than_there_is_room_for(most: int, times: list[tuple[int, float]]) -> None:
    runs = RunLengths()
    for length, ms in times:
        runs.learn(timed(length, ms), SEEDED_MS)
        assert runs.choose(batch(most=most), SEEDED_MS, SEEDED_MS) in LENGTHS
        assert runs.choose(batch(most=most), SEEDED_MS, SEEDED_MS) <= most


@pytest.mark.parametrize("length", LENGTHS)
def test_one_round_far_off_decides_nothing(length: int) -> None:
    runs = RunLengths()
    before = serve(runs, round_ms=1.3, decode_ms=1.0)[-1]
    runs.learn(timed(length, 1000.0), SEEDED_MS)
    assert runs.choose(batch(), SEEDED_MS, SEEDED_MS) == before


def test_single_decodes_between_runs_count_in_the_mean_and_not_alone() -> None:
    runs = RunLengths()
    assert runs.mean_length(4) == 1.0
    for length in (1, 4, 4, 1):  # the first of a stay says nothing
        runs.observe(Plan(PLAIN_TIER, length), 4)
    assert runs.mean_length(3) == 3.0
    assert runs.mean_length(5) == 1.0  # another size class
    for _ in range(NUM_NEWEST):
        runs.observe(Plan(PLAIN_TIER, 2), 4)
    assert runs.mean_length(4) == 2.0


def test_while_drafts_run_what_a_stay_would_run_is_noted() -> None:
    runs = RunLengths()
    for most in (8, 1):
        runs.expect(batch(most=1)._replace(most_in_stay=most), SEEDED_MS, SEEDED_MS)
    assert runs.mean_length(4) == 4.5


def test_a_run_pays_a_prefill_once() -> None:
    """Decodes of a run save nothing by themselves."""

    def served(between_ms: tuple[float, ...]) -> int:
        runs = RunLengths()
        for length in LENGTHS:
            for _ in range(RUNS.known_rounds):
                runs.learn(timed(length, length * 1.0), SEEDED_MS)
        return runs.choose(batch(), SEEDED_MS, SEEDED_MS, between_ms=between_ms)

    assert served((0.0, 0.0, 0.0, 0.0)) == 1
    assert served((8.0, 4.0, 2.0, 1.0)) == 8


def test_runs_that_are_cut_short_lose_less_and_teach_nothing() -> None:
    """Requests of 20 tokens: 8 decodes in a row save 44 % of the time, and would lose 52 %.

    Cut short they lose 10 %.
    """
    found = {}
    for are_cut in (False, True):
        runs = RunLengths(are_cut=are_cut)
        runs.count_tokens(2000)
        runs.count_ends(range(100), ())
        found[are_cut] = serve(runs, round_ms=1.0, decode_ms=1.0)[-1]
    assert found == {False: 2, True: 8}
    runs = RunLengths(are_cut=True)
    for _ in range(RUNS.window):
        runs.learn(timed(3, 9.0), SEEDED_MS)
    assert not runs.describe()["ms_per_decode"]


def test_runs_of_many_requests_are_never_cut() -> None:
    runs, whole = RunLengths(are_cut=True), RunLengths()
    for each in (runs, whole):
        each.count_tokens(2000)
        each.count_ends(range(100), ())
    assert runs.kept(MOST_WATCHED + 1, 8) == whole.kept(MOST_WATCHED + 1, 8)
    assert runs.kept(MOST_WATCHED, 8) > whole.kept(MOST_WATCHED, 8)
