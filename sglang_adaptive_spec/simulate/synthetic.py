"""Golden traces: traffic with known acceptance, made from a seed.

A request has one hazard per draft position: the chance that a draft is accepted given that all
before it were. Hazards may change with the phase, requests come in kinds, and a closed loop keeps
as many requests open as the load says. Draft j of a round at output position p holds if the number
of (seed, request, p + j) is below the hazard of position j.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sglang_adaptive_spec.simulate.workload import (
    Clock,
    Floats,
    Ints,
    Live,
    Request,
    position_keys,
    request_keys,
    uniform,
)

MAX_STEPS = 10  # the deepest tier that the golden traces can tell from its neighbours
GOOD = 0.9  # hazard of drafts worth deep chains, as in the benchmark `matrix`
BAD = 0.3  # hazard of drafts not worth a chain
MIDDLE = 0.7
OUTLIVING_TOKENS = 10**9
NUM_QUANTILES = 4001  # of chances that scatter
LENGTH_SPREAD = 0.5  # requests are this much shorter or longer than the mean, evenly


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with unchanging acceptance and speed."""

    start_s: float
    hazards: tuple[float, ...]  # per kind of request, the same at every draft position
    slowdown: float = 1.0
    slowdown_of: Mapping[int, float] = field(default_factory=dict)  # by num_steps, beyond that


@dataclass(frozen=True)
class SyntheticWorkload:
    """A closed loop of requests with known hazards; ends after ``duration_s``."""

    name: str
    duration_s: float
    load: tuple[tuple[float, int], ...]  # (from second, concurrency), ascending
    phases: tuple[Phase, ...]  # ascending, the first from 0
    prompt_tokens: int = 128
    mean_tokens: int = 400
    seed: int = 1
    max_steps: int = MAX_STEPS
    context: tuple[tuple[float, int], ...] = ()  # (second, tokens a request), linear between
    change_s: float = 0.0  # when round times change
    # Chances of single drafts scatter about their hazard h as Beta(h k, (1 - h) k), and the draft
    # knows them. 0: every draft holds with its hazard, and nobody knows more.
    concentration: float = 0.0

    @property
    def has_table(self) -> bool:
        """Says no."""
        return False

    def found(self, live: Live) -> Ints:
        """Is not asked."""
        raise NotImplementedError

    def is_over(self, clock: Clock) -> bool:
        """Says whether the time is up."""
        return clock.now_s >= self.duration_s

    def concurrency(self, clock: Clock) -> int:
        """Returns the load of this second."""
        return self.load[bisect_right(self._load_starts, clock.now_s) - 1][1]

    def request(self, idx: int) -> Request:
        """Returns request ``idx``: kinds alternate, lengths are spread evenly about the mean."""
        luck = float(uniform(request_keys(self.seed, np.array([idx])))[0])
        num_tokens = round(self.mean_tokens * (1 + LENGTH_SPREAD * (2 * luck - 1)))
        return Request(self.prompt_tokens, num_tokens, idx % len(self.phases[0].hazards))

    def phase(self, clock: Clock) -> int:
        """Returns the phase of this second."""
        return bisect_right(self._phase_starts, clock.now_s) - 1

    def slowdown(self, clock: Clock, num_steps: int) -> float:
        """Returns the slowdown of a depth in this second."""
        phase = self.phases[self.phase(clock)]
        return phase.slowdown * phase.slowdown_of.get(num_steps, 1.0)

    def context_tokens(self, clock: Clock, live: Live) -> int:
        """Returns prompts plus output so far, or what `context` says of this second."""
        if self.context:
            seconds, tokens = zip(*self.context, strict=True)
            return round(live.size * float(np.interp(clock.now_s, seconds, tokens)))
        return int(live.prompt_tokens.sum() + live.positions.sum())

    def num_correct_drafts(self, phase: int, live: Live, num_steps: int) -> Ints:
        """Returns the accepted drafts per row."""
        if num_steps == 0:
            return np.zeros(live.size, np.int64)
        positions = live.positions[:, None] + np.arange(num_steps)
        luck = uniform(position_keys(request_keys(self.seed, live.idx)[:, None], positions))
        hazards = self._hazards[phase][live.kinds][:, None]
        if self.concentration:
            hazards = self._chances(phase, live, positions)
        is_correct = np.logical_and.accumulate(luck < hazards, axis=1)
        return np.asarray(is_correct.sum(axis=1), np.int64)

    def confidences(self, phase: int, live: Live, num_steps: int) -> Floats | None:
        """Returns the chances of the drafts of a round, where they scatter: [num_steps, bs]."""
        if not (self.concentration and num_steps):
            return None
        return self._chances(phase, live, live.positions[:, None] + np.arange(num_steps)).T

    def _chances(self, phase: int, live: Live, positions: Ints) -> Floats:
        """Returns the chance of every draft: [bs, num_steps]."""
        keys = request_keys(self.seed + 1, live.idx)[:, None]  # another luck than whether it holds
        luck = uniform(position_keys(keys, positions))
        found = np.empty(luck.shape)
        for kind, quantiles in enumerate(self._quantiles[phase]):
            rows = live.kinds == kind
            found[rows] = np.interp(luck[rows], np.linspace(0, 1, len(quantiles)), quantiles)
        return found

    def expected_tokens(self, phase: int, live: Live) -> Floats:
        """Returns ``sum over rows of 1 + h + h^2 + ... + h^d`` for every depth d."""
        hazards = self._hazards[phase][live.kinds]
        powers: Floats = hazards[:, None] ** np.arange(self.max_steps + 1)
        return np.asarray(powers.sum(axis=0).cumsum())

    @cached_property
    def _load_starts(self) -> list[float]:
        return [start_s for start_s, _ in self.load]

    @cached_property
    def _phase_starts(self) -> list[float]:
        return [phase.start_s for phase in self.phases]

    @cached_property
    def _quantiles(self) -> list[list[Floats]]:
        """Of the chances, by phase and kind: as many draws as need be, in order."""
        draws, k = np.random.default_rng(self.seed), self.concentration
        return [
            [np.sort(draws.beta(h * k, (1 - h) * k, NUM_QUANTILES)) for h in phase.hazards]
            for phase in self.phases
        ]

    @cached_property
    def _hazards(self) -> list[Floats]:
        return [np.array(phase.hazards) for phase in self.phases]


def alternating(period_s: float, num_phases: int, *levels: float) -> tuple[Phase, ...]:
    """Returns phases of equal length that go through ``levels`` again and again."""
    return tuple(Phase(idx * period_s, (levels[idx % len(levels)],)) for idx in range(num_phases))


def ramp(step_s: float, *sizes: int) -> tuple[tuple[float, int], ...]:
    """Returns a load that stays at every size for ``step_s``."""
    return tuple((idx * step_s, size) for idx, size in enumerate(sizes))


def matrix_cell(batch_size: int, *hazards: float, duration_s: float = 10.0) -> SyntheticWorkload:
    """Returns a cell of the benchmark `matrix`: one batch whose requests all outlive it."""
    name = f"matrix-{batch_size}-{'-'.join(map(str, hazards))}"
    phases = (Phase(0, hazards),)
    return SyntheticWorkload(
        name, duration_s, ((0, batch_size),), phases, mean_tokens=OUTLIVING_TOKENS
    )


def golden_workloads() -> Mapping[str, SyntheticWorkload]:
    """Returns the golden traces by name; the number that ends a name is the batch size."""
    good, bad = (Phase(0, (GOOD,)),), (Phase(0, (BAD,)),)
    neighbour = (
        Phase(0, (MIDDLE,)),
        Phase(5, (MIDDLE,), slowdown=1.5),
        Phase(65, (MIDDLE,)),
    )
    up_and_down = (1, 2, 4, 8, 16, 32, 64, 128, 64, 32, 16, 8, 4, 2, 1)
    workloads = (
        SyntheticWorkload("steady-high-1", 8, ((0, 1),), good),
        SyntheticWorkload("steady-high-8", 8, ((0, 8),), good),
        SyntheticWorkload("steady-high-64", 8, ((0, 64),), good),
        SyntheticWorkload("steady-low-8", 8, ((0, 8),), bad),
        SyntheticWorkload("steady-low-64", 8, ((0, 64),), bad),
        SyntheticWorkload("phases-10s-16", 40, ((0, 16),), alternating(10, 4, BAD, GOOD)),
        SyntheticWorkload("phases-2s-16", 16, ((0, 16),), alternating(2, 8, BAD, GOOD)),
        SyntheticWorkload("phases-0.5s-16", 8, ((0, 16),), alternating(0.5, 16, BAD, GOOD)),
        SyntheticWorkload("ramp-1-128-1", 30, ramp(2, *up_and_down), (Phase(0, (MIDDLE,)),)),
        SyntheticWorkload("mixed-32", 12, ((0, 32),), (Phase(0, (BAD, GOOD)),)),
        SyntheticWorkload("long-context-8", 12, ((0, 8),), (Phase(0, (MIDDLE,)),), 32_000),
        SyntheticWorkload("neighbour-8", 70, ((0, 8),), neighbour),
    )
    return {workload.name: workload for workload in workloads}


def changing_workloads() -> Mapping[str, SyntheticWorkload]:
    """Returns traces whose round times change at `change_s`, by name as the golden ones.

    ``own-*``: the tier that is best gets dearer by half. ``drafts-*``: all tiers but zero steps do.
    """
    growth = ((0.0, 1_000), (40.0, 100_000))
    long_growth = ((0.0, 2_000), (40.0, 400_000))
    jump = ((0.0, 1_000), (5.0, 1_000), (5.001, 50_000))
    drafts = {steps: 1.5 for steps in range(1, MAX_STEPS + 1)}

    def steady(name: str, size: int, hazard: float) -> SyntheticWorkload:
        return SyntheticWorkload(name, 40, ((0, size),), (Phase(0, (hazard,)),))

    def dearer(name: str, size: int, hazard: float, by: Mapping[int, float]) -> SyntheticWorkload:
        phases = (Phase(0, (hazard,)), Phase(5, (hazard,), slowdown_of=by))
        return replace(steady(name, size, hazard), phases=phases, change_s=5.0)

    workloads = (
        dearer("own-1", 1, MIDDLE, {5: 1.5}),
        dearer("own-8", 8, MIDDLE, {5: 1.5}),
        dearer("own-16", 16, GOOD, {7: 1.5}),
        dearer("own-64", 64, BAD, {0: 1.5}),
        dearer("drafts-8", 8, MIDDLE, drafts),
        dearer("drafts-16", 16, 0.5, drafts),
        replace(steady("growth-8", 8, MIDDLE), context=growth),
        replace(steady("growth-16", 16, 0.5), context=growth),
        replace(steady("long-growth-1", 1, MIDDLE), context=long_growth),
        replace(steady("long-growth-8", 8, MIDDLE), context=long_growth),
        replace(steady("jump-8", 8, MIDDLE), context=jump, change_s=5.0),
        replace(steady("jump-16", 16, 0.5), context=jump, change_s=5.0),
    )
    return {workload.name: workload for workload in workloads}
