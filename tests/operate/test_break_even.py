"""Which tier pays: known numbers, and what must hold for any costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.operate.explain.break_even import Explorer
from sglang_adaptive_spec.operate.explain.source import example
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

TREE = Tier(3, 4, 8)
CHAINS = tuple(chain_tier(steps) for steps in (0, 1, 3, 7))


class LineTimes:
    """Rounds of a verify and a draft a step; a step costs half a verify."""

    def __init__(self, verify_ms: float = 2.0, draft_ms: float = 1.0) -> None:
        self.verify_ms, self.draft_ms = verify_ms, draft_ms

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        extra_ms = 0.1 if tier == PLAIN_TIER else 0.0
        return self.verify_ms + self.draft_ms * tier.num_steps + extra_ms

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        return 0.1


def explorer(*tiers: Tier, times: LineTimes | None = None) -> Explorer:
    return Explorer(times or LineTimes(), Ladder({1: tiers or CHAINS}), context=100)


def test_a_chain_gives_a_geometric_sum_and_a_tree_what_the_policy_would_guess() -> None:
    assert explorer().tokens(chain_tier(3), 0.5) == 1.875
    assert explorer().tokens(PLAIN_TIER, 0.5) == 1.0
    model = AcceptanceModel(3, [TREE])
    hazard = model.survival()[0]
    guessed = model.expected_tokens(["a"], [TREE])[0]
    assert explorer().tokens(TREE, hazard) == pytest.approx(guessed, rel=1e-6)


def test_the_lifts_that_a_server_learned_count() -> None:
    learned = Explorer(LineTimes(), Ladder({1: [TREE]}), 100, lifts={TREE: [0.0, 0.0, 0.0]})
    assert learned.tokens(TREE, 0.5) == pytest.approx(1.875)


def test_the_break_even_of_one_step_is_what_its_round_takes_more() -> None:
    """3 ms for 1 + a tokens against 2 ms for one: a = 0.5."""
    assert explorer(PLAIN_TIER, chain_tier(1)).break_even(4) == pytest.approx(0.5, abs=1e-5)
    slow = LineTimes(draft_ms=2.5)
    assert explorer(PLAIN_TIER, chain_tier(1), times=slow).break_even(4) is None
    assert explorer(PLAIN_TIER).break_even(4) is None


def test_gains_are_over_no_speculation_without_catch_ups_and_over_the_fixed_depth() -> None:
    low = explorer().pays(4, 0.1)
    assert low.tier == PLAIN_TIER
    assert low.over_none == pytest.approx(2.0 / 2.1)
    assert low.over_fixed == pytest.approx((1 / 2.1) / (1.111 / 5.0))
    high = explorer().pays(4, 0.9)
    assert high.tier == chain_tier(3)
    assert high.over_none == pytest.approx(3.439 / 5.0 * 2.0)
    assert high.over_fixed == 1.0
    assert explorer(PLAIN_TIER, chain_tier(1)).pays(4, 0.9).over_fixed is None


def test_the_equation_has_the_line_through_the_chains() -> None:
    found = explorer().equation(16, 0.9)
    assert found is not None
    assert found.tier == chain_tier(3)
    assert found.tokens == pytest.approx(3.439)
    assert (found.draft_ms, found.verify_ms) == pytest.approx((1.0, 2.0))
    assert found.tokens_per_s == pytest.approx(16e3 * 3.439 / 5.0)
    assert found.none_tokens_per_s == pytest.approx(8000)
    single = explorer(PLAIN_TIER, chain_tier(1)).equation(1, 0.7)
    assert single is not None
    assert single.draft_ms is None
    assert explorer(PLAIN_TIER, TREE).equation(1, 0.7) is None


@given(st.floats(0.1, 10), st.floats(0.01, 10), st.floats(0, 0.98))
def test_below_the_break_even_nothing_drafts_gain(
    verify_ms: float, draft_ms: float, acceptance: float
) -> None:
    made = explorer(times=LineTimes(verify_ms, draft_ms))
    least = made.break_even(2)
    none = 2e3 / made.none_ms(2)
    best = max(made.rate(tier, 2, acceptance) for tier in CHAINS[1:])
    if least is None or acceptance < least - 1e-4:
        assert best < none * (1 + 1e-3)
    elif acceptance > least + 1e-4:
        assert best >= none * (1 - 1e-9)


@given(st.sampled_from((1, 8, 32, 128)), st.floats(0.05, 0.95))
def test_the_tier_named_is_the_best_of_the_ladder(size: int, acceptance: float) -> None:
    made = example().explorer
    best = made.pays(size, acceptance)
    assert best.tier in made.ladder.of(size)
    rates = [made.rate(tier, size, acceptance) for tier in made.ladder.of(size)]
    assert made.rate(best.tier, size, acceptance) == max(rates)
