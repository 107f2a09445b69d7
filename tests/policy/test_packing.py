"""Which drafts a packed round verifies: the best that so many tokens can hold."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.policy.packing import Confident, Packed, Packing
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, Tier, chain_tier

ROWS = 3
CHAINS = (chain_tier(0), chain_tier(1), chain_tier(2), chain_tier(3))


class Times:
    """Rounds that take a ms a step and a tenth a token, whatever the batch."""

    def __init__(self, *widths: int, choosing_ms: float = 0.0) -> None:
        self.widths, self._choosing_ms = np.array(widths), choosing_ms

    def round_ms(self, tiers: tuple[Tier, ...], _batch_size: int, _context: int) -> Any:
        return np.array([[tier.num_steps] for tier in tiers]) + 0.1 * self.widths

    def forget(self, _batch_size: int) -> None:
        """Has nothing that serving taught."""

    def choosing_ms(self, tiers: tuple[Tier, ...], _batch_size: int) -> Any:
        return np.full(len(tiers), self._choosing_ms)


def batch(num_rows: int = ROWS) -> DecodeBatch:
    return DecodeBatch(num_rows, tuple(range(num_rows)))


def survivals(hazards: Any) -> Any:
    return np.multiply.accumulate(np.array(hazards), 0)


def packing(*widths: int, choosing_ms: float = 0.0, hope: float = 0.0) -> Packing:
    costs: Any = Times(*widths, choosing_ms=choosing_ms)
    return Packing(costs, 4, 8, replace(DEFAULTS.packing, hope=hope))


def nothing(tokens: Any) -> Any:
    return np.zeros_like(tokens)


def best(packed: Packing, survival: Any, tiers: tuple[Tier, ...] = CHAINS) -> Packed:
    found = packed.best(batch(survival.shape[1]), tiers, survival, nothing)
    assert found is not None
    return found


def by_force(survival: Any, tier: Tier, width: int) -> float:
    """Returns the most tokens that ``width`` verified tokens of a tier's drafts can give."""
    num_rows = survival.shape[1]
    lens = itertools.product(range(1, tier.num_draft_tokens + 1), repeat=num_rows)
    return max(
        num_rows + sum(float(survival[: most - 1, row].sum()) for row, most in enumerate(each))
        for each in lens
        if sum(each) == width
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_other_lengths_and_no_other_tier_give_more(seed: int) -> None:
    survival = survivals(np.random.default_rng(seed).random((3, ROWS)))
    widths = (4, 5, 6, 8, 11)
    found = best(packing(*widths), survival)
    lens = found.plan.verify_lens
    assert lens is not None
    assert all(1 <= length <= found.plan.tier.num_draft_tokens for length in lens)
    most = by_force(survival, found.plan.tier, sum(lens))
    assert found.tokens == pytest.approx(most)
    rates = [
        by_force(survival, tier, width) / (tier.num_steps + 0.1 * width)
        for tier in CHAINS[1:]
        for width in widths
        if width < ROWS * tier.num_draft_tokens
    ]
    assert found.rate == pytest.approx(max(rates))


def test_every_width_is_filled_exactly_where_all_are_alike() -> None:
    survival = survivals(np.full((3, 8), 0.7))
    for width in range(9, 32):
        lens = best(packing(width), survival).plan.verify_lens
        assert lens is not None
        assert (len(lens), sum(lens)) == (8, width)


def test_a_row_that_is_never_accepted_gets_its_root_alone() -> None:
    survival = survivals([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    found = best(packing(5), survival, (chain_tier(3),))
    assert found.plan == Plan(chain_tier(3), verify_lens=(4, 1))


def test_there_is_none_without_a_width_between_no_drafts_and_all() -> None:
    survival = survivals(np.full((3, ROWS), 0.5))
    for width in (2, ROWS, 4 * ROWS, 100):
        assert packing(width).best(batch(), CHAINS, survival, nothing) is None


def test_trees_are_not_packed() -> None:
    survival = survivals(np.full((3, ROWS), 0.5))
    trees = (Tier(3, 2, 6),)
    assert packing(5).best(batch(), trees, survival, nothing) is None


def test_it_must_gain_to_begin_and_half_of_that_to_go_on() -> None:
    survival = survivals(np.full((3, ROWS), 0.5))
    packed, gain = packing(5), DEFAULTS.packing.min_gain
    rate = best(packed, survival).rate

    def is_in_force(rate_of_tiers: float) -> bool:
        packed.choose(batch(), CHAINS, survival, nothing, rate_of_tiers)
        return packed.newest is not None

    assert not is_in_force(rate / (1 + 0.9 * gain))
    assert is_in_force(rate / (1 + 1.1 * gain))
    assert is_in_force(rate / (1 + 0.6 * gain))
    assert not is_in_force(rate / (1 + 0.4 * gain))


def test_a_depth_that_nobody_tried_is_hoped_to_be_a_little_faster() -> None:
    survival, settings = survivals(np.full((3, ROWS), 0.5)), DEFAULTS.packing
    packed, deep, shallow = packing(5, hope=settings.hope), chain_tier(3), chain_tier(2)
    round_ms = {deep: 10.0, shallow: 10.0 * (1 + settings.hope / 2)}
    costs: Any = packed.costs
    costs.round_ms = lambda tiers, *_: np.array([[round_ms[tier]] for tier in tiers])
    rate = best(packed, survival, (deep,)).tokens / 10.0

    def tried(num_rounds: int, rate_of_tiers: float = 0.0) -> Tier | None:
        packed.choose(batch(), (shallow, deep), survival, nothing, rate_of_tiers)
        packed.count_rounds(num_rounds)
        return packed.newest and packed.newest.plan.tier

    # Both give as many tokens. Each is tried, at first in place of a tier that is known as faster.
    assert tried(settings.window, 1.01 * rate) == deep
    assert [tried(settings.window) for _ in range(2)] == [shallow, deep]
    assert tried(1, 1.01 * rate) is None
    round_ms[shallow] *= 1 - settings.hope  # what its rounds taught
    assert tried(1) == shallow


def test_what_was_tried_with_few_requests_is_not_known_with_many() -> None:
    packed = packing(5, 14, hope=0.04)
    few, many = survivals(np.full((3, ROWS), 0.5)), survivals(np.full((3, 8), 0.5))
    rates = best(packed, few).rate, best(packed, many).rate
    packed.choose(batch(), CHAINS, few, nothing, 0.0)
    packed.count_rounds(DEFAULTS.packing.window)
    packed.choose(batch(), CHAINS[-1:], few, nothing, 0.0)
    packed.count_rounds(DEFAULTS.packing.window)
    assert best(packed, few, CHAINS[-1:]).rate < rates[0]
    assert best(packed, many).rate == rates[1]


def test_what_comes_between_rounds_counts() -> None:
    """Where a prefill comes before almost every round, rounds that give much have fewer."""
    survival = survivals(np.full((3, ROWS), 0.9))
    packed = packing(5, 11)
    assert sum(best(packed, survival).plan.verify_lens or ()) == 5
    found = packed.best(batch(), CHAINS, survival, lambda tokens: np.full_like(tokens, 50.0))
    assert found is not None
    assert sum(found.plan.verify_lens or ()) == 11


def test_nothing_is_packed_without_widths_or_beyond_what_the_graphs_hold() -> None:
    survival = survivals(np.full((7, 4), 0.9))
    deep = (*CHAINS, chain_tier(7))
    assert best(packing(9), survival, deep).plan.tier.num_steps <= 3  # windows have four tokens
    assert packing().best(batch(4), deep, survival, nothing) is None
    many = survivals(np.full((3, 9), 0.9))  # one row more than may be
    assert packing(12).best(batch(9), CHAINS, many, nothing) is None


def tried(packed: Packing, survival: Any) -> float:
    """Packs until no depth that pays is untried; returns what packing gives in a ms."""
    packed.choose(batch(survival.shape[1]), CHAINS, survival, nothing, 0.0)
    packed.count_rounds(DEFAULTS.packing.window)
    return best(packed, survival).rate


def test_what_made_packing_dearer_is_forgotten_and_it_is_tried_again() -> None:
    survival, settings = survivals(np.full((3, ROWS), 0.5)), DEFAULTS.packing
    packed = packing(5, hope=settings.hope)
    rate = tried(packed, survival)
    forgotten: list[int] = []
    packed.costs.forget = forgotten.append  # type: ignore[method-assign]

    def decide(rate_of_tiers: float) -> bool:
        packed.choose(batch(), CHAINS, survival, nothing, rate_of_tiers)
        return packed.newest is not None

    assert not decide(rate)
    packed.count_rounds(settings.retry_rounds - 1)
    assert not decide(rate)
    packed.count_rounds(1)
    assert decide(rate)
    assert forgotten == [ROWS]
    packed.count_rounds(settings.retry_rounds)  # in force: no time without
    assert not decide(rate)
    packed.count_rounds(2 * settings.retry_rounds)
    assert not decide(rate * (1 + settings.hope))
    assert forgotten == [ROWS] * 2


def test_a_try_that_does_not_stay_puts_off_the_next_one() -> None:
    survival, settings = survivals(np.full((3, ROWS), 0.5)), DEFAULTS.packing
    packed = packing(5, hope=settings.hope)
    rate = tried(packed, survival)

    def rounds_until_tried() -> int:
        num_rounds = 0
        while packed.newest is None:
            packed.count_rounds(64)
            num_rounds += 64
            packed.choose(batch(), CHAINS, survival, nothing, rate)
        return num_rounds

    def gives_up_after(num_rounds: int) -> None:
        packed.count_rounds(num_rounds)
        packed.choose(batch(), CHAINS, survival, nothing, 2 * rate)

    gives_up_after(0)
    waits = []
    for _ in range(6):
        waits.append(rounds_until_tried())
        gives_up_after(settings.stay_rounds - 1)
    first = settings.retry_rounds
    assert waits == [first, 2 * first, 4 * first, 8 * first, 16 * first, 16 * first]
    rounds_until_tried()
    gives_up_after(settings.stay_rounds)
    assert rounds_until_tried() == first


def test_packed_rounds_of_other_batch_sizes_do_not_put_off_a_try() -> None:
    few, many = survivals(np.full((3, ROWS), 0.5)), survivals(np.full((3, 8), 0.5))
    packed = packing(5, 14, hope=DEFAULTS.packing.hope)
    rate = tried(packed, few)
    for _ in range(DEFAULTS.packing.retry_rounds // 64):
        packed.choose(batch(), CHAINS, few, nothing, rate)
        assert packed.newest is None
        packed.count_rounds(64)
        packed.choose(batch(8), CHAINS, many, nothing, 0.0)
        assert packed.newest is not None
        packed.count_rounds(64)
    packed.choose(batch(), CHAINS, few, nothing, rate)
    assert packed.newest is not None


def in_force(*lens: int, most_rows: int = 8) -> Packing:
    packed = Packing(packing(5).costs, window=4, most_rows=most_rows)
    packed.newest = Packed(Plan(CHAINS[3], verify_lens=lens), 1.0, 1.0, 1.0)
    return packed


@pytest.mark.parametrize(
    ("hazards", "wanted"),
    [
        ((0.9, 0.1, 0.5, 0.2), (4, 1, 2, 1)),
        ((0.1, 0.2, 0.5, 0.9), (1, 1, 2, 4)),
        ((0.9, 0.5, 0.4), (4, 2, 2)),
        ((0.9, 0.9, 0.9, 0.9, 0.1), (2, 2, 2, 1, 1)),
        ((0.5, 0.5), None),  # eight tokens are all they can have: no packed round
        ((0.5,) * 8, None),  # one each: nothing to verify
    ],
)
def test_between_decisions_the_same_tokens_go_to_the_likeliest_drafts_of_another_batch(
    hazards: tuple[float, ...], wanted: tuple[int, ...] | None
) -> None:
    packed = in_force(4, 1, 2, 1)
    survival = survivals(np.tile(hazards, (5, 1)))  # deeper than the tier drafts
    packed.keep(survival)
    assert (packed.newest and packed.newest.plan.verify_lens) == wanted
    packed.keep(survival)
    assert (packed.newest and packed.newest.plan.verify_lens) == wanted


def test_more_rows_than_graphs_hold_have_no_packed_round() -> None:
    packed = in_force(4, 1, 2, most_rows=3)
    packed.keep(survivals(np.full((3, 4), 0.5)))
    assert packed.newest is None


def test_confidence_chooses_where_it_expects_more() -> None:
    alike = survivals(np.full((3, ROWS), 0.5))
    scattered = survivals([[0.95, 0.5, 0.05], [0.95, 0.5, 0.05], [0.95, 0.5, 0.05]])
    weights = (1.0, 0.0, 0.0, 0.0)
    deepest = CHAINS[3:]
    found = packing(5).best(batch(), deepest, alike, nothing, Confident(weights, [scattered]))
    assert found is not None
    assert found.plan.by_confidence == weights
    assert sum(found.plan.verify_lens or ()) == 5
    assert found.tokens == pytest.approx(ROWS + 0.95 + 0.95**2)
    dear = packing(5, choosing_ms=0.5)  # of 3.5 ms; it gives 1.4 times the tokens
    assert dear.best(batch(), deepest, alike, nothing, Confident(weights, [scattered])) == (
        found._replace(round_ms=4.0, rate=found.tokens / 4.0)
    )
    dear = packing(5, choosing_ms=3.0)
    by_lengths = dear.best(batch(), deepest, alike, nothing, Confident(weights, [scattered]))
    assert by_lengths is not None
    assert by_lengths.plan.by_confidence is None
    unasked = Packing(packing(5).costs, window=4, most_rows=8, most_unasked=ROWS)
    by_lengths = unasked.best(batch(), deepest, alike, nothing, Confident(weights, [scattered]))
    assert by_lengths is not None
    assert by_lengths.plan.by_confidence is None
    knows_nothing = Confident(weights, [alike * 0.9])
    found = packing(5).best(batch(), deepest, alike, nothing, knows_nothing)
    assert found is not None
    assert found.plan.by_confidence is None


def test_what_it_is_expected_to_give_is_the_mean_of_the_newest_rounds() -> None:
    one, other = survivals([[0.9, 0.1, 0.1]] * 3), survivals([[0.3, 0.3, 0.3]] * 3)
    both = Confident((1.0, 0.0), [one, other])
    found = packing(5).best(batch(), CHAINS[3:], other * 0.1, nothing, both)
    assert found is not None
    assert found.tokens == pytest.approx(ROWS + (0.9 + 0.81 + 0.3 + 0.3) / 2)
