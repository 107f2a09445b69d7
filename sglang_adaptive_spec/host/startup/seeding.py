"""Measures what a round of every tier costs, before the server is ready.

Whole rounds are run through the host's worker on a batch that no request owns: draft, verify,
sampling and draft-extend, planned anew for each round as while serving, on KV slots borrowed from
the empty pool at two context lengths. What the scheduler adds between rounds is learned while
serving (policy/costs/table.py). All ranks run the same rounds; rank 0's times count.

The borrowed slots keep what the rounds wrote, as slots that a finished request gave back do.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch

from sglang_adaptive_spec.host.drafters import confidences
from sglang_adaptive_spec.host.drafters.drafter import Drafter
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.startup.borrowed_batch import BorrowedBatch, fresh, longest_context
from sglang_adaptive_spec.host.startup.cost_key import cost_key
from sglang_adaptive_spec.host.startup.packed_graphs import PackedTarget
from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder
from sglang_adaptive_spec.policy.costs.cache import CostKey, default_folder, load, save
from sglang_adaptive_spec.policy.costs.curves import MIN_MS
from sglang_adaptive_spec.policy.costs.table import DEFAULT_BUCKETS, CostTable
from sglang_adaptive_spec.policy.costs.widths import Series
from sglang_adaptive_spec.runtime.builder import WHAT_TO_CHANGE
from sglang_adaptive_spec.runtime.pool import TierState
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, Plan, Tier

logger = logging.getLogger(__name__)

MAX_REPEATS = 2  # of points that contradict their neighbours
NEEDED_SIZES = 7  # batch sizes per tier; the cost table interpolates
# More sizes while there is time: round times leap from one captured size to the next. On an H200 a
# line from 12 to 32 requests was 15 % above 10 steps of 24.
MAX_SIZES = 16
CONTEXT_LEN = 256  # tokens per request
# A long context as well at the first sizes: a second point of a line, whose slope the others
# borrow. Far off, because contexts beyond it are extrapolated.
LONG_CONTEXT_LEN = 16384
MAX_LONG_TOKENS = 262144  # of all requests: the slope is one per token, and time is short
LONG_SIZES = 2
WARM_UP_ROUNDS = 1
TIMED_ROUNDS = 3  # on a GPU, between events
# What is not measured by then is interpolated; the first point of each tier is taken all the same.
# On an H200 7 chains with 4 trees took 9.6 s for all of 122 points (0.87 s a tier;
# benchmarks/results/archive/matrix-trees-h200.json.xz), with six rounds a point.
LIMIT_S = 8.0  # or TIER_LIMIT_S for each tier, where that is more
TIER_LIMIT_S = 1.2
# Packed rounds: numbers of tokens that are not measured by then are not used.
WIDTHS_LIMIT_S = 3.0
# Of the batch of one series of widths to the next one's: they share most of theirs.
SERIES_RATIO = 4
# A choice: kept round times are dropped where one is off by more, either way. Windows of one arm
# differ by up to 1.18 on an H200 (FlashInfer); measuring again costs 8 s.
MAX_KEPT_RATIO = 1.25
CPU_SIZES = (1, 4)
CPU_CONTEXT_LEN = 64
CPU_TIMED_ROUNDS = 3  # their median: a CPU is rarely idle


def spaced(sizes: Sequence[int], count: int) -> list[int]:
    """Returns at most ``count`` of ``sizes``, both ends included, about equal ratios apart.

    Ends first, then the middle: whoever stops early has covered the range.
    """
    remaining = sorted(set(sizes))
    chosen: list[int] = []
    for size in (remaining[:1] + remaining[-1:]) if remaining else ():
        if size not in chosen:
            chosen.append(size)
    while len(chosen) < min(count, len(remaining)):
        candidates = [size for size in remaining if size not in chosen]
        chosen.append(
            max(candidates, key=lambda size: min(max(size / c, c / size) for c in chosen))
        )
    return chosen


class Seeding(NamedTuple):
    """Where the costs at start-up came from."""

    source: str  # "measured" or "cache"
    seconds: float
    num_points: int
    warm_up_s: float  # a first round of every tier, not in ``seconds``: a new machine compiles


def measured_costs(
    engine: HostEngine, builder: TierBuilder, drafter: Drafter
) -> tuple[CostTable, Seeding]:
    """Returns the costs of an earlier start on the same machine, else measures them.

    Raises:
        RuntimeError: A tier's round cannot be run on a borrowed batch.
    """
    start_s = time.perf_counter()
    ranks = engine.ranks
    seeder = Seeder(engine, builder, drafter)
    folder = default_folder() if ranks.is_first else None
    sizes = {size for state in engine.pool.states for size in state.graph_batch_sizes}
    costs = CostTable.empty(builder.ladder.tiers, sorted(sizes) or DEFAULT_BUCKETS)
    key = cost_key(engine, costs.tiers, sizes, seeder.longest_contexts())
    found = load(key, folder)
    state = ranks.broadcast(None if found is None else found.to_dict())
    kept = None if state is None else CostTable.from_dict(state)
    if kept is not None and seeder.is_whole(kept) and seeder.confirms(kept):
        costs, source = kept, "cache"
    else:
        costs, source = seeder.seed(costs), "measured"
    if source == "measured" and ranks.is_first:
        _keep(key, costs, folder, seeder)
    if drafter.catch_ups is not None:
        costs.catch_up_rounds = drafter.catch_ups.width
    seconds = time.perf_counter() - start_s - seeder.warm_up_s
    return costs, Seeding(source, seconds, seeder.num_points, seeder.warm_up_s)


def measured_widths(
    engine: HostEngine, builder: TierBuilder, drafter: Drafter, packed: PackedTarget
) -> list[Series]:
    """Returns what packed rounds take by their verified tokens, a series per batch size; not kept.

    Raises:
        RuntimeError: Such a round cannot be run on a borrowed batch.
    """
    series = Seeder(engine, builder, drafter).series(packed)
    return engine.ranks.broadcast(series)


def _keep(key: CostKey, costs: CostTable, folder: Path | None, seeder: "Seeder") -> None:
    """Keeps a whole table for the next start, and names what half a one lacks."""
    if seeder.is_complete:
        save(key, costs, folder)
        return
    late = f"its limit of {seeder.limit_s:g} s was over"
    _warn_of(seeder.out_of_time, late, "list fewer tiers in the config")
    full = "the KV pool has too few slots"
    _warn_of(seeder.out_of_room, full, "give the server a larger KV pool")


def _warn_of(missing: Collection[tuple[Tier, int]], why: str, remedy: str) -> None:
    if not missing:
        return
    sizes = defaultdict(list)
    for tier, size in sorted(missing):
        sizes[tier].append(str(size))
    logger.warning(
        "ADAPTIVE_EAGLE did not measure the round times of %s: %s. It guesses them from others, "
        "corrects them while serving and keeps none; the next start measures again. "
        "If this repeats, %s.",
        "; ".join(f"tier {tier.label} at batch {','.join(of)}" for tier, of in sizes.items()),
        why,
        remedy,
    )


class Seeder:
    """Runs and times rounds of every tier on a synthetic batch."""

    def __init__(self, engine: HostEngine, builder: TierBuilder, drafter: Drafter) -> None:
        self._engine, self._pool, self._builder = engine, engine.pool, builder
        self._drafter = drafter
        self._is_cpu = engine.device == "cpu"
        self._max_batch_size = builder.max_listed_size()
        self.num_points = 0
        self.warm_up_s = 0.0
        self.limit_s = max(LIMIT_S, TIER_LIMIT_S * len(self._pool.states))
        self.out_of_time: set[tuple[Tier, int]] = set()  # planned and not begun
        self.out_of_room: set[tuple[Tier, int]] = set()  # the pool could not hold it
        self.is_complete = False

    def longest_contexts(self) -> tuple[int, ...]:
        """Returns the longest contexts of one request and of the largest batch, in powers of two.

        A small pool cuts them, and what was measured on one says little about long contexts. Pools
        differ by a few slots from start to start; the same power of two is the same pool.
        """
        longest = (self._contexts(size, True)[-1] for size in (1, self._max_batch_size))
        return tuple(2 ** (length.bit_length() - 1) for length in longest)

    def confirms(self, costs: CostTable) -> bool:
        """Times one point of every tier; returns whether all are about what ``costs`` says.

        A key says what a start asked for. What it does not know, a slower clock, say, or another
        driver, shows here.
        """
        try:
            self._warm_up()
            for state in self._pool.states:
                tier, size = state.tier, max(self._sizes(state), default=0)
                if not size:  # a shape to start at, which no batch chooses
                    continue
                context_len = self._contexts(size, False)[0]
                self._pool.activate(tier)
                with self._borrowed(size, context_len) as batch:
                    if batch is None:
                        continue
                    ms = median(self._times_ms(Plan(tier), batch))
                self.num_points += 1
                expected_ms = costs.round_ms(tier, size, size * context_len)
                if tier == PLAIN_TIER:
                    expected_ms -= costs.plain_extra_ms(size, size * context_len)
                off = max(ms, expected_ms) / max(min(ms, expected_ms), MIN_MS)
                if not self._builder.agree(off <= MAX_KEPT_RATIO):
                    logger.info(
                        "ADAPTIVE_EAGLE measures its round times anew: tier %s takes %.2f ms at "
                        "batch %d, and %.2f ms by those kept from an earlier start.",
                        *(tier.label, ms, size, expected_ms),
                    )
                    return False
        finally:
            self._reset()
        return True

    def is_whole(self, costs: CostTable) -> bool:
        """Returns whether ``costs`` has all points that a start needs.

        A key has tiers and captured sizes, not at which of them a batch may choose which tier.
        """
        return all(
            costs.measured_at(state.tier).issuperset(self._sizes(state)[:NEEDED_SIZES])
            for state in self._pool.states
        )

    def seed(self, costs: CostTable) -> CostTable:
        """Returns ``costs`` with what was measured, alike on every rank.

        Every tier has its first point whatever that takes, else at one request.

        Raises:
            RuntimeError: The KV pool cannot hold that, or the round cannot be run.
        """
        try:
            self._warm_up()
            deadline_s = time.perf_counter() + self.limit_s
            points = list(self._points(0, NEEDED_SIZES))
            self.out_of_time = {(tier, size) for tier, size, _ in points}
            self._measure_until(deadline_s, costs, points)
            self._measure_again(costs, points, deadline_s)
            more = list(self._points(NEEDED_SIZES, MAX_SIZES))
            self._measure_until(deadline_s, costs, more)
            self._measure_again(costs, points + more, deadline_s)
        finally:
            self._reset()
        for state in self._pool.states:
            if self._sizes(state) and not costs.measured_at(state.tier):
                raise RuntimeError(
                    f"ADAPTIVE_EAGLE cannot measure tier {state.tier.label}: the KV pool is too "
                    "small for a round of one request. Raise --mem-fraction-static or "
                    "--max-total-tokens."
                )
        costs.fit()
        ranks = self._engine.ranks
        if ranks.are_several:
            costs = CostTable.from_dict(ranks.broadcast(costs.to_dict()))
        self.is_complete = not (self.out_of_time or self.out_of_room)  # last: nothing failed
        return costs

    def series(self, packed: PackedTarget) -> list[Series]:
        """Measures packed rounds of the deepest chain at some batch sizes, the largest first.

        Rows are as alike as their number of tokens allows: how those are spread changes little.
        """
        found = []
        deadline_s = time.perf_counter() + WIDTHS_LIMIT_S
        size = packed.most_rows
        try:
            while size > 1:
                tier = max(
                    (t for t in self._builder.ladder.of(size) if packed.holds(t)),
                    default=PLAIN_TIER,
                )
                widths = [n for n in packed.widths if size < n <= size * tier.num_draft_tokens]
                if widths:
                    found.append(self._series(tier, size, widths, deadline_s))
                size //= SERIES_RATIO
        finally:
            self._reset()
        return found

    def _series(self, tier: Tier, size: int, widths: Sequence[int], deadline_s: float) -> Series:
        """Returns rounds of whole windows and packed ones, as many as there is time for."""
        self._pool.activate(tier)
        whole_ms, found = 0.0, dict[int, float]()
        choosing_ms: float | None = None
        asks = self._builder.why_no_confidence is None and size > confidences.MOST_UNASKED
        with self._borrowed(size, self._contexts(size, False)[0]) as batch:
            # The whole first: all others are compared with it.
            first = sorted(widths, key=lambda width: width != size * tier.num_draft_tokens)
            for width in first if batch is not None else ():
                if not self._builder.agree(time.perf_counter() < deadline_s):
                    break
                if not found:
                    whole_ms = median(self._times_ms(Plan(tier), batch))
                plan = Plan(tier, verify_lens=even_lengths(width, size))
                ms = median(self._times_ms(plan, batch))
                if not found and asks:
                    plan = plan._replace(by_confidence=(1.0, *[0.0] * tier.num_steps))
                    choosing_ms = max(median(self._times_ms(plan, batch)) - ms, 0.0)
                found[width] = ms
        return Series(size * tier.num_draft_tokens, whole_ms, found, choosing_ms)

    def _measure_until(
        self, deadline_s: float, costs: CostTable, points: Sequence[tuple[Tier, int, bool]]
    ) -> None:
        """Measures points until the deadline; a tier's first one whatever that takes."""
        for tier, size, has_long in points:
            has_point = bool(costs.measured_at(tier))
            if has_point and not self._builder.agree(time.perf_counter() < deadline_s):
                return
            if not self._measure(costs, tier, size, has_long):
                self.out_of_room.add((tier, size))
                if not costs.measured_at(tier):
                    self._measure(costs, tier, 1, False)
            self.out_of_time.discard((tier, size))

    def _measure_again(
        self, costs: CostTable, points: Sequence[tuple[Tier, int, bool]], deadline_s: float
    ) -> None:
        """Measures again what contradicts its neighbours, while there is time; alike on all ranks.

        Repeats of a point are combined by their median (policy/costs/seeds.py).
        """
        for _ in range(MAX_REPEATS):
            doubtful = {
                min((at for at in points if at[0] == tier and at[1] >= size), key=itemgetter(1))
                for tier, size in self._engine.ranks.broadcast(costs.out_of_order())
            }  # a size without a graph was measured at the one that it pads to
            for tier, size, has_long in sorted(doubtful):
                if not self._builder.agree(time.perf_counter() < deadline_s):
                    return
                self._measure(costs, tier, size, has_long)

    def _borrowed(self, size: int, context_len: int) -> BorrowedBatch:
        return BorrowedBatch(self._engine, self._drafter, size, context_len)

    def _reset(self) -> None:
        """Puts the start-up tier in force; nobody waits for a round that was measured."""
        self._pool.activate(self._engine.options.startup_tier)
        self._engine.runners[-1].shared_read_done_event = None

    def _warm_up(self) -> None:
        """Runs a round of every tier: on a new machine the first ones compile for seconds."""
        if self.warm_up_s:  # kept round times were not confirmed
            return
        start_s = time.perf_counter()
        for state in self._pool.states:
            sizes = self._sizes(state)
            with self._borrowed(min(sizes, default=1), 1) as batch:
                if batch is not None and sizes:
                    self._pool.activate(state.tier)
                    self._run(self._plan(state.tier, self._has_catch_up(state.tier)), batch)
        self.warm_up_s = time.perf_counter() - start_s

    def _points(self, first: int, end: int) -> Iterator[tuple[Tier, int, bool]]:
        """Yields tiers and batch sizes, the ends first, and whether to measure a long context."""
        sizes = {state.tier: self._sizes(state) for state in self._pool.states}
        for idx in range(first, end):
            for tier, of_tier in sizes.items():
                if idx < len(of_tier):
                    yield tier, of_tier[idx], idx < LONG_SIZES

    def _sizes(self, state: TierState) -> list[int]:
        ladder, tier, limit = self._builder.ladder, state.tier, self._max_batch_size
        sizes = [min(size, limit) for size in state.graph_batch_sizes or CPU_SIZES]
        bounds = [bound for bound, tiers in ladder.ranges.items() if tier in tiers]
        smallest = [min(bound, limit) for bound in bounds[:1]]  # where no size listed chooses it
        chosen = [size for size in sizes if tier in ladder.of(size)]
        return spaced(chosen or smallest, MAX_SIZES)

    def _measure(self, costs: CostTable, tier: Tier, size: int, has_long: bool) -> bool:
        """Times ``tier`` at every context length; returns whether the pool could hold all."""
        self._pool.activate(tier)
        is_whole = True
        for context_len in self._contexts(size, has_long):
            with self._borrowed(size, context_len) as batch:
                if batch is None:  # the pool is too small for it
                    is_whole = False
                    continue
                kinds = (False, True) if self._has_catch_up(tier) else (False,)
                for is_catch_up in kinds:
                    times_ms = self._times_ms(self._plan(tier, is_catch_up), batch)
                    ms, spread = median(times_ms), relative_error(times_ms)
                    for padded in self._padding_up_to(tier, size):
                        context = padded * context_len
                        costs.seed(tier, padded, context, ms, is_catch_up, spread)
                    self.num_points += 1
        return is_whole

    def _contexts(self, size: int, has_long: bool) -> list[int]:
        """Returns the tokens per request to measure at, as many as pool and request rows hold."""
        longest = max(longest_context(self._engine, size), 1)
        if self._is_cpu:
            return [min(CPU_CONTEXT_LEN, longest)]
        if not has_long:
            return [min(CONTEXT_LEN, longest)]
        long = min(LONG_CONTEXT_LEN, longest, max(MAX_LONG_TOKENS // size, 2 * CONTEXT_LEN))
        return [min(CONTEXT_LEN, max(long // 2, 1)), long]

    def _padding_up_to(self, tier: Tier, size: int) -> list[int]:
        """Returns ``size`` and the sizes that run at it because ``tier`` has no graph of theirs."""
        states = {state.tier: state.graph_batch_sizes for state in self._pool.states}
        own, every = states[tier], sorted({size, *(s for sizes in states.values() for s in sizes)})
        below = max((s for s in own if s < size), default=size - 1)
        return [s for s in every if below < s <= size]

    def _has_catch_up(self, tier: Tier) -> bool:
        catch_ups = self._drafter.catch_ups
        return tier == PLAIN_TIER and catch_ups is not None and catch_ups.schedule is not None

    @staticmethod
    def _plan(tier: Tier, is_catch_up: bool) -> Plan:
        return Plan(tier, catch_up=CatchUp.WHOLE if is_catch_up else CatchUp.NONE)

    def _run(self, plan: Plan, batch: ScheduleBatch) -> None:
        """Runs a round whose tier is in force on a batch that no request owns."""
        tier = plan.tier
        try:
            self._engine.run_alone(plan, batch)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(
                f"ADAPTIVE_EAGLE ran out of memory in a round of tier {tier.label}. "
                f"{WHAT_TO_CHANGE}."
            ) from error
        except Exception as error:  # a draft may ask more of a batch than a borrowed one has
            raise RuntimeError(
                f"ADAPTIVE_EAGLE cannot measure tier {tier.label}: its round fails with {error!r}. "
                "--speculative-adaptive-config conservative needs no round times; please report "
                "model and draft."
            ) from error

    def _times_ms(self, plan: Plan, batch: ScheduleBatch) -> list[float]:
        """Returns the times of some rounds that follow each other at once."""
        for _ in range(1 if self._is_cpu else WARM_UP_ROUNDS):
            self._run(plan, fresh(batch))
        if self._is_cpu:
            marks_s = [time.perf_counter()]
            for _ in range(CPU_TIMED_ROUNDS):
                self._run(plan, fresh(batch))
                marks_s.append(time.perf_counter())
            return [(end - begin) * 1e3 for begin, end in pairwise(marks_s)]
        event = torch.get_device_module(self._engine.device).Event
        marks = [event(enable_timing=True) for _ in range(TIMED_ROUNDS + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self._run(plan, fresh(batch))
            mark.record()
        marks[-1].synchronize()
        return [float(begin.elapsed_time(end)) for begin, end in pairwise(marks)]


def even_lengths(num_tokens: int, num_rows: int) -> tuple[int, ...]:
    """Returns lengths of rows that differ by one at most."""
    each, more = divmod(num_tokens, num_rows)
    return tuple(each + (row < more) for row in range(num_rows))


def relative_error(times_ms: Sequence[float]) -> float:
    """Returns the standard error of the mean of ``times_ms`` (two or more), as a share of it."""
    return stdev(times_ms) / math.sqrt(len(times_ms)) / max(mean(times_ms), MIN_MS)
