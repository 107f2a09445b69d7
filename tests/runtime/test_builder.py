"""Building: estimated before it is captured, decided alike on every rank, withdrawn in time."""

import logging
import math

import pytest

from sglang_adaptive_spec.config.schema import parse_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.builder import MIN_RESERVED_GB, build_tiers, reserved_gb
from sglang_adaptive_spec.runtime.memory import MemoryModel
from sglang_adaptive_spec.runtime.pool import Place, RuntimePool, TierState
from sglang_adaptive_spec.tiers import Tier, chain_tier
from tests.runtime.fake_host import CAPTURED, VOCAB, FakeHost, of_a_draft

SEVEN = chain_tier(7)
TREE = Tier(3, 4, 24)


def ladder_of(slots: str) -> Ladder:
    """The ladder of slots, named as in a config file."""
    return parse_config("a test", f'{{"policy": "goodput", {slots}}}'.encode()).ladder


def run(host: FakeHost) -> RuntimePool:
    pool = RuntimePool([Place(host, "slot")], SEVEN)
    sizes = host.graph_batch_sizes(SEVEN)
    pool.add(TierState(SEVEN, (7,), sizes, 1.0, 1.0))
    memory = MemoryModel(0.2, of_a_draft)
    memory.learn(SEVEN, sizes, 1.0)
    build_tiers(pool, host, memory)
    return pool


def run_from_no_tier(host: FakeHost, budget_gb: float = math.inf) -> RuntimePool:
    """The start-up shape holds every tree and chain, is none of them and captured nothing."""
    startup = Tier(7, 4, 24)
    pool = RuntimePool([Place(host, "slot")], startup)
    pool.add(TierState(startup, (7,), (), 1.0, 0.0))
    build_tiers(pool, host, MemoryModel(0.0, of_a_draft), budget_gb)
    return pool


def test_every_reachable_tier_is_built_once_shallowest_first() -> None:
    host = FakeHost(free_gb=40, cost_gb=1)
    pool = run(host)
    assert [tier.num_steps for tier in host.built] == [0, 1, 3, 5]
    assert [state.tier.num_steps for state in pool.states] == [0, 1, 3, 5, 7]
    assert all(state.build_gb == 1 for state in pool.states)


def test_a_tier_that_does_not_fit_is_left_out_with_a_warning_that_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = FakeHost(free_gb=MIN_RESERVED_GB + 1.0, cost_gb=0.1)
    with caplog.at_level(logging.WARNING):
        run(host)
    assert chain_tier(5) not in host.built
    assert all(chain_tier(5) not in host.ladder.of(batch) for batch in range(1, 129))
    assert "leaves out tier 5" in caplog.text
    assert "--mem-fraction-static" in caplog.text


def test_the_start_stops_where_no_tier_fits() -> None:
    with pytest.raises(RuntimeError, match="Lower --mem-fraction-static"):
        run(FakeHost(free_gb=MIN_RESERVED_GB, cost_gb=1))


def test_a_tier_whose_build_raises_stops_the_start_with_the_error() -> None:
    """No tier is left out behind the user's back, and none is offered half built."""
    host = BreaksAtThree(free_gb=40, cost_gb=1)
    pool = RuntimePool([Place(host, "slot")], SEVEN)
    pool.add(TierState(SEVEN, (7,), (1, 2, 4, 8), 1.0, 1.0))
    memory = MemoryModel(0.2, of_a_draft)
    memory.learn(SEVEN, (1, 2, 4, 8), 1.0)
    with pytest.raises(MemoryError, match="num_steps=3"):
        build_tiers(pool, host, memory)
    assert [tier.num_steps for tier in host.built] == [0, 1]
    assert [state.tier.num_steps for state in pool.states] == [0, 1, 7]
    assert pool.current == SEVEN
    assert chain_tier(3) in host.ladder.of(1)


def test_without_graphs_of_the_start_up_tier_the_first_tier_teaches_what_the_others_take() -> None:
    """A ladder with trees may start at a shape that is no tier, which nothing is captured for."""
    host = FakeHost(free_gb=MIN_RESERVED_GB + 3.0, cost_gb=1.0)
    run_from_no_tier(host)
    assert host.built[0] == chain_tier(1)  # drafting, and the shallowest
    assert chain_tier(5) not in host.built  # what it taught ruled the deepest out


@pytest.mark.parametrize(
    ("room_gb", "budget_gb", "says"),
    [
        (1.1, math.inf, None),
        (9.0, 1.1, None),
        (0.4, math.inf, "0.60 GB more"),
        (9.0, 0.5, "0.50 GB more"),
    ],
)
def test_a_tier_that_is_built_without_an_estimate_and_overruns_is_told_of(
    room_gb: float, budget_gb: float, says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ladder = ladder_of('"1": {"candidate_steps": [3]}')
    host = FakeHost(MIN_RESERVED_GB + room_gb, cost_gb=1.0, ladder=ladder)
    run_from_no_tier(host, budget_gb)
    assert host.built == [chain_tier(3)]
    assert ("built tier 3" in caplog.text) == (says is not None)
    assert says is None or says in caplog.text


def test_the_last_tier_is_left_out_too_where_a_tier_is_there_already(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ladder = ladder_of('"1": {"candidate_steps": [3, 7]}')
    host = FakeHost(free_gb=MIN_RESERVED_GB + 1.5, cost_gb=1.0, ladder=ladder)
    run_from_no_tier(host)
    assert host.built == [chain_tier(3)]
    assert set(host.ladder.ranges.values()) == {(chain_tier(3),)}
    assert "leaves out tier 7" in caplog.text
    host = FakeHost(free_gb=MIN_RESERVED_GB, cost_gb=1.0, ladder=ladder)
    run(host)
    assert host.built == []
    assert set(host.ladder.ranges.values()) == {(SEVEN,)}
    assert "leaves out tier 3" in caplog.text


def test_the_start_stops_where_batches_would_draft_deeper_than_asked() -> None:
    three_at_large = ladder_of('"1": {"candidate_steps": [3, 7]}, "8": {"candidate_steps": [3]}')
    with pytest.raises(RuntimeError, match="no room for tier 3, and without it"):
        run(FakeHost(free_gb=MIN_RESERVED_GB, cost_gb=1.0, ladder=three_at_large))
    plain_at_large = ladder_of('"1": {"candidate_steps": [3, 5]}, "64": {"candidate_steps": [0]}')
    host = FakeHost(free_gb=MIN_RESERVED_GB + 1.0, cost_gb=1.0, ladder=plain_at_large)
    with pytest.raises(RuntimeError, match="no room for tier 0, and without it"):
        run_from_no_tier(host)


@pytest.mark.parametrize(
    ("at_large", "misfit"),
    [('{"candidate_steps": [3]}', "1-8-9"), ('{"candidate_tiers": [[3, 2, 4]]}', "3-2-4")],
)
def test_the_start_stops_where_batches_would_draft_deeper_or_wider_without_graphs(
    at_large: str, misfit: str
) -> None:
    """A chain is no way out for a shallower tree, nor a bushy tree for a slim one."""
    ladder = ladder_of(f'"1": {{"candidate_tiers": [[1, 8, 9]]}}, "9": {at_large}')
    host = FakeHost(free_gb=MIN_RESERVED_GB + 1.2, cost_gb=1.0, ladder=ladder)
    with pytest.raises(RuntimeError, match=f"no room for tier {misfit}, and without it"):
        run_from_no_tier(host)


def test_a_tier_is_left_out_where_its_batches_fall_back_to_a_slot_out_of_reach() -> None:
    ladder = ladder_of(
        '"1": {"candidate_steps": [7]}, "8": {"candidate_steps": [5]}, '
        '"200": {"candidate_steps": [4]}'
    )
    pool = run(FakeHost(free_gb=MIN_RESERVED_GB + 0.9, cost_gb=0.0, ladder=ladder))
    assert [state.tier.num_steps for state in pool.states] == [4, 7]


def test_a_tier_yet_to_be_built_is_captured_for_the_batches_that_fall_back_to_it() -> None:
    """Though it is wider than what they lost: here nothing else is left."""
    ladder = ladder_of(
        '"1": {"candidate_steps": [7]}, "5": {"candidate_tiers": [[1, 8, 9]]}, '
        '"9": {"candidate_steps": [3]}'
    )
    pool = run(FakeHost(free_gb=MIN_RESERVED_GB + 0.7, cost_gb=0.0, ladder=ladder))
    graphs = {state.tier.label: state.graph_batch_sizes for state in pool.states}
    assert graphs == {"1-8-9": (8, 16, 32, 64, 128), "7": (1, 2, 4)}


def test_batches_that_fall_back_to_the_first_tier_are_told_of_its_missing_graphs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ladder = ladder_of('"1": {"candidate_steps": [3]}, "9": {"candidate_steps": [5]}')
    host = FakeHost(free_gb=MIN_RESERVED_GB + 1.2, cost_gb=1.0, ladder=ladder)
    run_from_no_tier(host)
    assert host.built == [chain_tier(3)]
    assert "no graphs of sizes 16, 32, 64, 128 for tier 3" in caplog.text


def test_a_tier_that_batches_fall_back_to_is_built_though_its_own_slot_is_out_of_reach() -> None:
    ladder = ladder_of(
        '"1": {"candidate_steps": [3, 7]}, "8": {"candidate_steps": [5]}, '
        '"200": {"candidate_steps": [4]}'
    )
    pool = run(FakeHost(free_gb=MIN_RESERVED_GB + 1.55, cost_gb=0.0, ladder=ladder))
    assert [state.tier.num_steps for state in pool.states] == [3, 4, 7]


def test_what_stays_free_follows_the_widest_verify() -> None:
    assert reserved_gb(128 * 8, 0, VOCAB) == MIN_RESERVED_GB
    assert reserved_gb(128 * 24, 0, VOCAB) == pytest.approx(4.4, abs=0.01)


def test_what_stays_free_holds_the_penalties_of_all_requests() -> None:
    """Four penalizers, a bias, two sums twice over, and one that is merged: 1 GB each."""
    gained_gb = reserved_gb(2048, 2048, VOCAB) - reserved_gb(2048, 0, VOCAB)
    assert gained_gb == pytest.approx(10 * 2048 * VOCAB * 4 / 2**30)


def test_a_wide_tree_is_refused_for_the_room_of_its_verify_and_costs_no_other_tier_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ladder = ladder_of('"1": {"candidate_steps": [1, 3, 5], "candidate_tiers": [[3, 4, 24]]}')
    host = FakeHost(free_gb=4.0, cost_gb=0.1, ladder=ladder)
    run_from_no_tier(host)
    assert host.built == [chain_tier(1), chain_tier(3), chain_tier(5)]
    assert "4.40 GB stay free" in caplog.text


def test_a_wide_tree_has_its_place_where_batches_are_small() -> None:
    ladder = ladder_of(
        '"1": {"candidate_steps": [1, 3, 5], "candidate_tiers": [[3, 4, 24]]}, '
        '"9": {"candidate_steps": [1, 3, 5]}'
    )
    host = FakeHost(free_gb=4.0, cost_gb=0.1, ladder=ladder)
    run_from_no_tier(host)
    assert host.built == [chain_tier(1), chain_tier(3), chain_tier(5), TREE]


def test_a_wide_shallow_tree_costs_no_deeper_chain_its_place() -> None:
    ladder = ladder_of(
        '"1": {"candidate_steps": [1, 3, 5, 7], "candidate_tiers": [[1, 16, 17], [2, 8, 24]]}'
    )
    host = FakeHost(free_gb=4.9, cost_gb=0.1, ladder=ladder)
    run_from_no_tier(host)
    chains = [chain_tier(step) for step in (1, 3, 5, 7)]
    assert host.built == [*chains, Tier(1, 16, 17)]


def test_what_stays_free_covers_batches_that_no_graph_serves() -> None:
    ladder = ladder_of('"1": {"candidate_steps": [1, 3], "candidate_tiers": [[3, 4, 24]]}')
    host = FakeHost(free_gb=4.0, cost_gb=0.1, ladder=ladder, captured=[1, 2, 4, 8])
    run_from_no_tier(host)
    assert host.built == [chain_tier(1), chain_tier(3)]


class BreaksAtThree(FakeHost):
    """Runs out of memory in the middle, whatever was estimated."""

    def build(self, tier: Tier) -> tuple[object, ...]:
        if tier.num_steps == 3:
            raise MemoryError(f"num_steps={tier.num_steps}")
        return super().build(tier)


def test_the_rank_with_the_least_memory_decides() -> None:
    tight, roomy = MIN_RESERVED_GB + 1.0, 40
    alone = FakeHost(free_gb=tight, cost_gb=0)
    run(alone)
    with_neighbour = FakeHost(free_gb=roomy, cost_gb=0, other_rank_free_gb=tight)
    run(with_neighbour)
    assert with_neighbour.built == alone.built


def test_rank_0_has_the_last_word() -> None:
    host = FakeHost(free_gb=0, cost_gb=0)
    host.rank0_says = True
    run(host)
    assert [tier.num_steps for tier in host.built] == [0, 1, 3, 5]
    host = FakeHost(free_gb=40, cost_gb=0)
    host.rank0_says = False
    with pytest.raises(RuntimeError):
        run(host)


@pytest.mark.parametrize("room_gb", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_with_any_room_no_batch_is_left_without_the_graph_of_a_tier_it_may_choose(
    room_gb: float,
) -> None:
    host = FakeHost(free_gb=MIN_RESERVED_GB + room_gb, cost_gb=0.0)
    pool = run(host)
    kept = {state.tier.num_steps for state in pool.states} - {7}
    assert kept == {step for step in (0, 1, 3, 5) if step <= max(kept)}  # shallow first
    graphs = {state.tier: state.graph_batch_sizes for state in pool.states}
    for batch in range(1, 129):
        size = min(size for size in CAPTURED if size >= batch)
        for tier in host.ladder.of(batch):
            assert size in graphs[tier], (batch, tier)
