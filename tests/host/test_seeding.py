"""Which batch sizes and contexts are measured at start-up, in which order, and what is kept."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.costs.cache import CostKey
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import Plan, Tier, chain_tier

DEEP = chain_tier(3)
RESERVE = 2 * DEEP.num_draft_tokens
MAX_POOL_SHARE = 0.8
SIZES = [1, 2, 4, 8, 16, 32]
NO_TIME = (" s was over", "list fewer tiers")
NO_ROOM = ("too few slots", "a larger KV pool")


@pytest.fixture(scope="module")
def seeding(plugins_loaded: None) -> Iterator[Any]:
    from sglang_adaptive_spec.host.startup import borrowed_batch, seeding

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(borrowed_batch, "get_alloc_reserve_per_decode", lambda: RESERVE)
        yield seeding


def test_the_ends_come_first_then_the_widest_gap(seeding: Any) -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert seeding.spaced(sizes, 3) == [1, 128, 12]
    assert sorted(seeding.spaced(sizes, 8))[:2] == [1, 2]


@given(sizes=st.sets(st.integers(1, 512)), count=st.integers(2, 10))
def test_both_ends_are_measured_and_nothing_twice(
    seeding: Any, sizes: set[int], count: int
) -> None:
    chosen = seeding.spaced(sorted(sizes), count)
    assert len(chosen) == len(set(chosen)) == min(count, len(sizes))
    assert set(chosen) <= sizes
    assert not sizes or {min(sizes), max(sizes)} <= set(chosen)


@pytest.mark.parametrize("samples", [True, False])
def test_rejection_sampling_is_measured_with_the_draft_s_probabilities(
    seeding: Any, monkeypatch: pytest.MonkeyPatch, samples: bool
) -> None:
    import torch

    from sglang_adaptive_spec.host.drafters import eagle

    drafter = object.__new__(eagle.EagleDrafter)
    drafter._draft = SimpleNamespace(hot_token_id=None, relay_topk=1, draft_runner=None)
    drafter._target_runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=50))
    drafter._worker = SimpleNamespace(
        device="cpu", server_args=SimpleNamespace(speculative_use_rejection_sampling=samples)
    )
    monkeypatch.setattr(
        eagle, "get_draft_recurrent_hidden_state_spec", lambda _: (8, torch.float32)
    )
    probs = drafter.made_up_input(4).draft_probs
    assert (probs is not None) == samples
    if samples:  # the host stacks them with those of the later steps
        assert probs.shape == (4, 50)
        torch.testing.assert_close(probs.sum(dim=1), torch.ones(4))


def ranks(is_first: bool = True) -> Any:
    """Ranks of one."""
    from sglang_adaptive_spec.host.ranks import Ranks

    group: Any = SimpleNamespace(world_size=1, broadcast_object=lambda each, src: each)
    return Ranks(group, is_first, 1, group)


def parts_of(free: int, row: int, page_size: int = 1, context_len: int = 10**6) -> Any:
    """Engine, tier builder and drafter as far as seeding asks before it runs a round."""
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=SimpleNamespace(shape=(64, row))),
        model_config=SimpleNamespace(context_len=context_len),
        token_to_kv_pool_allocator=SimpleNamespace(
            page_size=page_size, available_size=lambda: free
        ),
    )
    tiers = [DEEP, chain_tier(1)]
    engine = SimpleNamespace(
        device="cuda",
        options=SimpleNamespace(startup_tier=DEEP),
        ranks=ranks(),
        target_runner=runner,
        runners=[SimpleNamespace()],
        pool=SimpleNamespace(
            states=[SimpleNamespace(tier=tier, graph_batch_sizes=SIZES) for tier in tiers],
            activate=lambda _tier: None,
        ),
    )
    builder = SimpleNamespace(
        agree=lambda answer: answer, ladder=Ladder({1: tiers}), max_listed_size=lambda: max(SIZES)
    )
    return engine, builder, SimpleNamespace(catch_ups=None)


def seeder_of(seeding: Any, max_batch_size: int = 32, **pool: int) -> Any:
    """A seeder for batches up to ``max_batch_size``."""
    engine, builder, drafter = parts_of(**{"free": 10**6, "row": 10**5} | pool)
    builder.max_listed_size = lambda: max_batch_size
    return seeding.Seeder(engine, builder, drafter)


@given(
    free=st.integers(1, 10**6),
    row=st.integers(16, 10**5),
    context_len=st.integers(16, 10**5),
    page_size=st.sampled_from([1, 16]),
    size=st.integers(1, 256),
)
def test_no_context_outgrows_pool_request_rows_or_the_model_s_context(
    seeding: Any, free: int, row: int, context_len: int, page_size: int, size: int
) -> None:
    engine, *_ = parts_of(free, row, page_size, context_len)
    longest = seeding.longest_context(engine, size)
    reserve = RESERVE
    per_row = -(-(longest + reserve) // page_size) * page_size
    assert per_row <= min(row, context_len)
    assert size * per_row <= MAX_POOL_SHARE * free
    contexts = seeder_of(
        seeding, 256, free=free, row=row, page_size=page_size, context_len=context_len
    )._contexts(size, True)
    assert contexts[0] <= contexts[1] <= max(longest, 1)


def test_a_long_context_is_measured_at_the_first_sizes_alone(seeding: Any) -> None:
    seeder = seeder_of(seeding)
    plan = list(seeder._points(0, seeding.MAX_SIZES))
    long = [(tier, size) for tier, size, has_long in plan if has_long]
    assert [size for tier, size in long if tier == DEEP] == [1, 32]
    assert {size for tier, size, _ in plan if tier == DEEP} == set(SIZES)
    assert seeder._contexts(1, True) == [seeding.CONTEXT_LEN, seeding.LONG_CONTEXT_LEN]
    assert seeder._contexts(32, True)[1] == seeding.MAX_LONG_TOKENS // 32
    assert seeder._contexts(1, False) == [seeding.CONTEXT_LEN]


@pytest.mark.parametrize(("num_tiers", "limit_s"), [(1, 8.0), (4, 8.0), (7, 8.4), (11, 13.2)])
def test_many_tiers_get_more_time_and_four_stay_within_ten_seconds(
    seeding: Any, num_tiers: int, limit_s: float
) -> None:
    engine, *others = parts_of(free=10**6, row=10**5)
    engine.pool.states = engine.pool.states[:1] * num_tiers
    assert seeding.Seeder(engine, *others).limit_s == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("limit_s", "num_needed", "is_complete"), [(60.0, 7, True), (5.0, 7, False), (5.0, 2, True)]
)
def test_half_a_table_is_not_complete_and_compiling_is_no_part_of_the_limit(
    seeding: Any,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float,
    num_needed: int,
    is_complete: bool,
) -> None:
    """Sizes between those that are needed may miss."""
    measured: list[tuple[Tier, int]] = []
    clock = SimpleNamespace(now_s=0.0)

    def pass_time(seconds: float) -> None:
        clock.now_s += seconds

    def measure(_self: Any, costs: Any, tier: Tier, size: int, _has_long: bool) -> bool:
        measured.append((tier, size))
        costs.seed(tier, size, 100, 1.0)
        pass_time(1.0)
        return True

    monkeypatch.setattr(seeding, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(seeding, "LIMIT_S", limit_s)
    monkeypatch.setattr(seeding, "NEEDED_SIZES", num_needed)
    monkeypatch.setattr(seeding.Seeder, "_measure", measure)
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: pass_time(100.0))
    seeder = seeder_of(seeding)
    seeder.seed(CostTable.empty([DEEP, chain_tier(1)], SIZES))
    assert len(measured) == min(int(limit_s), 2 * len(SIZES))
    assert seeder.is_complete is is_complete
    tiers = (DEEP, chain_tier(1))
    needed = {(t, size) for t in tiers for size in seeding.spaced(SIZES, num_needed)}
    assert seeder.out_of_time == needed - set(measured)
    assert seeder.out_of_room == set()


def test_every_timed_round_finds_the_draft_input_that_the_first_one_found(seeding: Any) -> None:
    found: list[int] = []

    def widen(_plan: Plan, batch: Any) -> None:
        found.append(batch.spec_info.width)
        batch.spec_info.width *= 4  # as a tree drafted without a graph does

    engine, *others = parts_of(free=10**6, row=10**5)
    engine.device, engine.run_alone = "cpu", widen
    batch = SimpleNamespace(spec_info=SimpleNamespace(width=4))
    assert min(seeding.Seeder(engine, *others)._times_ms(Plan(DEEP), batch)) >= 0
    assert len(found) > 2
    assert set(found) == {4}


class FakeBatch:
    """A borrowed batch as far as its size goes: there is one if the pool can hold it."""

    def __init__(self, engine: Any, _drafter: Any, size: int, context_len: int) -> None:
        from sglang_adaptive_spec.host.startup.seeding import longest_context

        self._fits = context_len <= longest_context(engine, size)

    def __enter__(self) -> Any:
        return self if self._fits else None

    def __exit__(self, *_: Any) -> None:
        """Has nothing to give back."""


@pytest.fixture
def start(seeding: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Starts a server with so many free KV slots and seconds; returns how it came by its costs."""
    tiers = (chain_tier(1), DEEP)
    key = CostKey(gpu="x", model="x", draft="x", versions={}, settings={}, tiers=tiers)
    monkeypatch.setattr(seeding, "BorrowedBatch", FakeBatch)
    monkeypatch.setattr(seeding.Seeder, "_times_ms", lambda *_: [round_ms[0]] * 3)
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    monkeypatch.setattr(
        seeding,
        "cost_key",
        lambda *args: msgspec.structs.replace(key, longest_contexts=args[-1]),
    )
    monkeypatch.setattr(seeding, "default_folder", lambda: tmp_path)
    round_ms = [5.0]

    def seed(
        free: int,
        limit_s: float = 60.0,
        rank: int = 0,
        agree: Callable[[bool], bool] = bool,
        activate: Callable[[Tier], None] = lambda _tier: None,
        ms: float = 5.0,
        ladder: Ladder | None = None,
    ) -> Any:
        round_ms[0] = ms
        monkeypatch.setattr(seeding, "LIMIT_S", limit_s)
        monkeypatch.setattr(seeding, "TIER_LIMIT_S", 0.0)
        engine, builder, drafter = parts_of(free, row=10**5)
        engine.ranks = ranks(is_first=rank == 0)
        builder.agree, engine.pool.activate = agree, activate
        builder.ladder = ladder or builder.ladder
        return seeding.measured_costs(engine, builder, drafter)[1]

    return seed


def test_pools_of_one_power_of_two_have_the_same_longest_contexts(
    seeding: Any,
) -> None:
    contexts = seeder_of(seeding, 32, free=10**5).longest_contexts()
    assert contexts == (16384, 2048)
    assert seeder_of(seeding, 64, free=10**5).longest_contexts()[0] == contexts[0]


def test_what_a_smaller_pool_cut_is_not_used_by_a_larger_one(start: Any) -> None:
    """A few slots more or less, as from start to start, are the same pool."""
    pools = (10**5, 10**5 + 500, 10**6, 10**5)
    assert [start(free).source for free in pools] == ["measured", "cache", "measured", "cache"]


def test_a_seed_carries_the_spread_of_its_rounds(seeding: Any) -> None:
    assert seeding.relative_error([5.0, 5.0, 5.0]) == 0.0
    assert seeding.relative_error([9.0, 10.0, 11.0]) == pytest.approx(0.1 / 3**0.5)


def test_what_contradicts_its_neighbours_is_measured_again(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stall made 1 step at batch 1 look dearer than 3 steps."""
    measured: list[tuple[Tier, int]] = []

    def times_ms(_self: Any, plan: Plan, size: int) -> list[float]:
        tier = plan.tier
        measured.append((tier, size))
        is_stalled = (tier, size) == (chain_tier(1), 1) and measured.count((tier, size)) == 1
        ms = 5.0 + tier.num_steps + 0.1 * size + 20.0 * is_stalled
        return [ms, ms + 0.01, ms - 0.01]

    class Sized(FakeBatch):
        def __init__(self, engine: Any, drafter: Any, size: int, context_len: int) -> None:
            super().__init__(engine, drafter, size, context_len)
            self._size = size

        def __enter__(self) -> Any:
            return self._size

    monkeypatch.setattr(seeding, "BorrowedBatch", Sized)
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    monkeypatch.setattr(seeding.Seeder, "_times_ms", times_ms)
    monkeypatch.setattr(seeding.Seeder, "_contexts", lambda *_: [256])
    monkeypatch.setattr(seeding, "NEEDED_SIZES", 4)  # the others may be out of time
    costs = seeder_of(seeding).seed(CostTable.empty([chain_tier(1), DEEP], SIZES))
    optional = {size for _, size in measured[8:]} - {size for _, size in measured[:8]}
    repeated = [at for idx, at in enumerate(measured) if at in measured[:idx]]
    assert measured.index(repeated[0]) < 8 <= min(measured.index((DEEP, size)) for size in optional)
    assert (chain_tier(1), 1) in measured[8 : 8 + len(repeated)]
    again = {at for at in measured if measured.count(at) > 1}
    assert (chain_tier(1), 1) in again
    assert len(again) < len(SIZES)  # its neighbours, too, and no others
    assert costs.round_ms(chain_tier(1), 1, 256) < costs.round_ms(DEEP, 1, 256)


@pytest.mark.parametrize(("ms", "source"), [(5.5, "cache"), (4.3, "cache"), (7.0, "measured")])
def test_kept_costs_that_disagree_with_this_start_are_measured_anew(
    start: Any, ms: float, source: str
) -> None:
    assert [start(10**6).source, start(10**6, ms=ms).source] == ["measured", source]
    assert start(10**6, ms=ms).source == "cache"


def test_a_shape_to_start_at_that_no_batch_chooses_is_not_confirmed(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ladder with trees starts at one that holds them all (runtime/builder.py)."""
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    engine, *others = parts_of(free=10**6, row=10**5)
    engine.pool.states = [SimpleNamespace(tier=chain_tier(9), graph_batch_sizes=())]
    assert seeding.Seeder(engine, *others).confirms(CostTable.empty([DEEP], SIZES))


def test_a_whole_table_is_kept_for_the_next_start(start: Any, caplog: Any) -> None:
    assert [start(10**6).source, start(10**6).source] == ["measured", "cache"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_table_without_points_where_a_tier_may_run_now_is_measured_again(start: Any) -> None:
    """The key has tiers and captured sizes, not the slots of a config."""
    few = Ladder({1: [DEEP, chain_tier(1)], 9: [chain_tier(1)]})
    whole = Ladder({1: [DEEP, chain_tier(1)]})
    ladders = (few, few, whole, few)
    sources = [start(10**6, ladder=ladder).source for ladder in ladders]
    assert sources == ["measured", "cache", "measured", "cache"]


@pytest.mark.parametrize(
    ("free", "limit_s", "named"),
    [
        (300, 60.0, ("round times of tier 1 at batch 32; tier 3 at batch 32: ", *NO_ROOM)),
        (10**6, 0.0, ("tier 3 at batch 2,4,8,16,32: ", *NO_TIME)),
    ],
)
def test_a_table_that_lacks_a_planned_size_is_named_and_measured_again(
    start: Any, caplog: Any, tmp_path: Path, free: int, limit_s: float, named: tuple[str, ...]
) -> None:
    assert start(free, limit_s).source == "measured"
    (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert [part for part in named if part not in warning] == []
    assert sum(remedy in warning for remedy in ("fewer tiers", "larger KV pool")) == 1
    assert list(tmp_path.iterdir()) == []
    assert start(10**6).source == "measured"


def test_sizes_out_of_time_and_out_of_room_are_told_apart(
    seeding: Any, monkeypatch: pytest.MonkeyPatch, start: Any, caplog: Any
) -> None:
    def half(_self: Any, costs: Any, tier: Tier, size: int, _has_long: bool) -> bool:
        costs.seed(tier, size, 100, 1.0)
        return False

    monkeypatch.setattr(seeding.Seeder, "_measure", half)
    start(300, agree=lambda _answer: False)
    late, full = (record.getMessage() for record in caplog.records)
    assert "tier 1 at batch 2,4,8,16,32; tier 3 at batch 2,4,8,16,32: " in late
    assert "tier 1 at batch 1; tier 3 at batch 1: " in full
    assert all(part in late and part not in full for part in NO_TIME)
    assert all(part in full and part not in late for part in NO_ROOM)


@pytest.mark.parametrize("step", ["measure", "activate", "fit"])
def test_a_seeding_that_fails_at_any_step_ends_the_start_and_keeps_no_table(
    seeding: Any, monkeypatch: pytest.MonkeyPatch, start: Any, tmp_path: Path, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("planted")

    def measure(_self: Any, costs: Any, tier: Tier, size: int, *_: Any) -> bool:
        if step == "measure":
            fail()
        if step == "fit":
            costs.fit = fail
        costs.seed(tier, size, 100, 1.0)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(seeding.Seeder, "_measure", measure)
        activate = fail if step == "activate" else lambda _tier: None
        with pytest.raises(AttributeError, match="planted"):
            start(10**6, activate=activate)
    assert list(tmp_path.iterdir()) == []
    assert start(10**6).source == "measured"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (AttributeError("no positions"), "--speculative-adaptive-config conservative"),
        (torch.OutOfMemoryError("of memory"), "Lower --mem-fraction-static"),
    ],
)
@pytest.mark.parametrize("of", ["_warm_up", "_measure", "confirms"])
def test_a_round_that_fails_names_its_tier_and_a_way_out(
    seeding: Any, monkeypatch: pytest.MonkeyPatch, of: str, error: Exception, fix: str
) -> None:
    def run_alone(plan: Plan, *_: Any) -> None:
        if plan.tier == chain_tier(1):  # neither the first nor the start-up tier
            raise error

    engine, *others = parts_of(free=10**6, row=10**5)
    engine.device, engine.run_alone = "cpu", run_alone
    monkeypatch.setattr(seeding, "BorrowedBatch", FakeBatch)
    monkeypatch.setattr(seeding, "fresh", lambda batch: batch)
    if of != "_warm_up":
        monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    costs = CostTable.empty([DEEP, chain_tier(1)], SIZES)
    others[0].agree = lambda _answer: True  # that of the start-up tier is confirmed
    seeder = seeding.Seeder(engine, *others)
    with pytest.raises(RuntimeError, match=f"tier 1.*{fix}"):
        seeder.confirms(costs) if of == "confirms" else seeder.seed(costs)


def test_a_pool_too_small_for_one_request_ends_the_start(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding.Seeder, "_measure", lambda *_: False)
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    with pytest.raises(RuntimeError, match="tier 3: the KV pool is too small"):
        seeder_of(seeding).seed(CostTable.empty([DEEP, chain_tier(1)], SIZES))


def test_a_tier_whose_batches_do_not_fit_is_measured_with_one_request(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Tier, int]] = []

    def measure(_self: Any, costs: Any, tier: Tier, size: int, _has_long: bool) -> bool:
        fits = size <= 8
        if fits:
            measured.append((tier, size))
            costs.seed(tier, size, 100, 1.0)
        return fits

    monkeypatch.setattr(seeding.Seeder, "_measure", measure)
    monkeypatch.setattr(seeding.Seeder, "_warm_up", lambda _self: None)
    engine, builder, drafter = parts_of(free=10**6, row=10**5)
    builder.ladder = Ladder({1: [DEEP], 16: [chain_tier(1)]})
    seeder = seeding.Seeder(engine, builder, drafter)
    costs = seeder.seed(CostTable.empty(builder.ladder.tiers, SIZES))
    assert costs.is_seeded
    assert [size for tier, size in measured if tier == chain_tier(1)] == [1]
    assert seeder.out_of_room == {(chain_tier(1), 16), (chain_tier(1), 32)}


def test_a_tier_that_no_size_listed_chooses_is_measured_where_its_range_begins(
    seeding: Any,
) -> None:
    engine, builder, drafter = parts_of(free=10**6, row=10**5)
    builder.ladder = Ladder({1: [DEEP], 3: [chain_tier(1)], 4: [DEEP]})
    plan = set(seeding.Seeder(engine, builder, drafter)._points(0, seeding.MAX_SIZES))
    assert [size for tier, size, _ in plan if tier == chain_tier(1)] == [3]


def test_only_the_first_rank_tells_and_keeps(start: Any, caplog: Any, tmp_path: Path) -> None:
    for free in (300, 10**6):
        start(free, rank=1)
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


def measured_plans(
    seeding: Any,
    monkeypatch: pytest.MonkeyPatch,
    free: int = 10**6,
    limit_s: float = 60.0,
    why_no_confidence: str | None = "not asked for",
) -> tuple[list[Any], list[Plan]]:
    """Returns the series of a server of 32 requests, and the plans that were timed for it."""
    plans: list[Plan] = []

    def times_ms(_self: Any, plan: Plan, _batch: Any) -> list[float]:
        plans.append(plan)
        return [float(len(plans))]

    engine, builder, drafter = parts_of(free=free, row=10**5)
    builder.agree = lambda verdict: verdict
    builder.why_no_confidence = why_no_confidence
    monkeypatch.setattr(seeding, "BorrowedBatch", FakeBatch)
    monkeypatch.setattr(seeding, "WIDTHS_LIMIT_S", limit_s)
    monkeypatch.setattr(seeding.Seeder, "_times_ms", times_ms)
    monkeypatch.setattr(seeding.Seeder, "_reset", lambda _self: None)
    packed = SimpleNamespace(
        window=4, most_rows=32, widths=(4, 8, 16, 24, 32, 48, 64, 128), holds=lambda t: t == DEEP
    )
    return seeding.Seeder(engine, builder, drafter).series(packed), plans


def test_packed_rounds_are_measured_in_series_that_share_widths(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, plans = measured_plans(seeding, monkeypatch)
    # The whole window first: where time runs out all others are compared with it.
    assert [list(each.packed_ms) for each in series] == [[128, 48, 64], [32, 16, 24], [8, 4]]
    assert [each.num_tokens for each in series] == [128, 32, 8]
    whole = [plan for plan in plans if plan.verify_lens is None]
    assert whole == [Plan(DEEP)] * 3
    assert [each.whole_ms for each in series] == [plans.index(whole[0]) + 1.0, 5.0, 9.0]
    assert {plan.tier for plan in plans} == {DEEP}
    plans = [plan for plan in plans if plan.verify_lens is not None]
    for plan in plans:
        assert plan.verify_lens is not None
        assert max(plan.verify_lens) - min(plan.verify_lens) <= 1
        assert 1 <= min(plan.verify_lens) <= max(plan.verify_lens) <= DEEP.num_draft_tokens
    widths = [sum(plan.verify_lens or ()) for plan in plans]
    assert widths == [128, 48, 64, 32, 16, 24, 8, 4]
    assert [len(plan.verify_lens or ()) for plan in plans] == [32] * 3 + [8] * 3 + [2] * 2


def test_what_choosing_by_confidence_adds_is_measured_where_it_may_choose(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, plans = measured_plans(seeding, monkeypatch, why_no_confidence=None)
    assert [each.choosing_ms for each in series] == [1.0, None, None]  # of 32, 8 and 2 requests
    by_confidence = [plan for plan in plans if plan.by_confidence is not None]
    assert [plan.by_confidence for plan in by_confidence] == [(1.0, *[0.0] * DEEP.num_steps)]
    assert by_confidence[0].verify_lens == plans[1].verify_lens


def test_what_the_pool_or_the_time_does_not_hold_is_not_measured(
    seeding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, plans = measured_plans(seeding, monkeypatch, limit_s=-1.0)
    assert (plans, [width for each in late for width in each.packed_ms]) == ([], [])
