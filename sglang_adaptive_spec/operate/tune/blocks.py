"""What a config gains over another on a trace, and how sure that is.

Both replay the whole trace, and their time is read at the same numbers of tokens, between which
both do the same work: block by block the two are paired. A search may look at the even blocks only;
what it found is stated for the odd ones, which it has not seen.

    gain = sum(ms of the one) / sum(ms of the other) - 1          over blocks, mean over seeds

Its standard error has two parts. Blocks differ: se_blocks is that of a ratio, of their residuals.
Seeds differ: another noise of round times, another luck where a trace does not say what a draft
would have given; se_seeds is that of the mean of the seeds' gains.
"""

from dataclasses import dataclass

import numpy as np

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.overrides import settings_from
from sglang_adaptive_spec.simulate.recorded import END_SHARE, RecordedWorkload
from sglang_adaptive_spec.simulate.replay import Replay, RoundCosts
from sglang_adaptive_spec.simulate.workload import Floats
from sglang_adaptive_spec.tiers import Observation, chain_tier
from sglang_adaptive_spec.trace.format import Trace

NUM_BLOCKS = 24
SEEDS = (1, 2, 3, 4, 5)
T_95 = 2.776  # Student's two-sided 95 % for 4 degrees of freedom, those of the seeds; blocks: more
COST_NOISE = 0.02  # relative error of round times that a start measures, as `simulate` has it
CHOSEN_ON, STATED_ON = slice(0, None, 2), slice(1, None, 2)  # blocks


@dataclass(frozen=True)
class Candidate:
    """What a server could be started with."""

    ranges: tuple[tuple[int, tuple[int, ...]], ...]  # steps by the smallest batch size, ascending
    settings: tuple[str, ...] = ()  # GROUP.NAME=VALUE, as for `simulate --set`

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step count of any range, ascending."""
        return tuple(sorted({steps for _, allowed in self.ranges for steps in allowed}))

    def policy(self, costs: RoundCosts, seed: int) -> GoodputPolicy:
        """Returns the policy as a server starts it."""
        ladder = Ladder({bound: [*map(chain_tier, steps)] for bound, steps in self.ranges})
        config = load_config(None).on(ladder)
        return goodput(costs, config, COST_NOISE, seed, settings_from(self.settings))


@dataclass(frozen=True)
class Served:
    """How long a candidate took for the work of every block, and what it ran."""

    seconds: Floats  # [seeds, blocks]
    rounds: dict[tuple[int, int], int]  # by steps and batch size, of all seeds


@dataclass(frozen=True)
class Gain:
    """Share of tokens/s that the one serves more than the other."""

    mean: float
    low: float  # of the 95 % interval
    high: float


class _Progress:
    """Reads the replay's clock at the head of every round, and counts rounds."""

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self.rounds: dict[tuple[int, int], int] = {}

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes a round that is about to be counted."""
        assert self.replay is not None
        self.tokens.append(self.replay.clock.num_tokens)
        self.seconds.append(now_s)
        run = observation.tier.num_steps, observation.batch_size
        self.rounds[run] = self.rounds.get(run, 0) + 1


class Traffic:
    """A trace with its round times, which candidates are replayed on."""

    def __init__(self, trace: Trace, costs: RoundCosts, max_steps: int) -> None:
        """Takes the trace; ``max_steps`` is the deepest tier that a candidate may have."""
        self._costs = costs
        self._workloads = [RecordedWorkload(trace, max_steps, seed) for seed in SEEDS]
        num_tokens = sum(one.num_tokens for one in trace.rounds)
        self._edges = np.linspace(0, END_SHARE * num_tokens, NUM_BLOCKS + 1)
        self._served: dict[Candidate, Served] = {}

    def serve(self, candidate: Candidate) -> Served:
        """Returns what a candidate takes; a second call for an equal one is free."""
        if candidate not in self._served:
            self._served[candidate] = self._replayed(candidate)
        return self._served[candidate]

    def gain(self, candidate: Candidate, over: Candidate, blocks: slice) -> Gain:
        """Returns what ``candidate`` gains on some blocks."""
        return gain(self.serve(over).seconds[:, blocks], self.serve(candidate).seconds[:, blocks])

    def _replayed(self, candidate: Candidate) -> Served:
        rows, rounds = [], dict[tuple[int, int], int]()
        for seed, workload in zip(SEEDS, self._workloads, strict=True):
            progress, policy = _Progress(), candidate.policy(self._costs, seed)
            progress.replay = Replay(policy, workload, self._costs, seed=seed, recorder=progress)
            result = progress.replay.run()
            tokens = [*progress.tokens, result.num_tokens]
            seconds = [*progress.seconds, result.time_s]
            rows.append(np.diff(np.interp(self._edges, tokens, seconds)))
            for run, number in progress.rounds.items():
                rounds[run] = rounds.get(run, 0) + number
        return Served(np.array(rows), rounds)


def gain(before: Floats, after: Floats) -> Gain:
    """Returns what the second gains over the first; both are seconds: [seeds, blocks]."""
    num_seeds, num_blocks = before.shape
    totals = before.sum(axis=1), after.sum(axis=1)
    by_seed = totals[0] / totals[1] - 1
    old, new = before.mean(axis=0), after.mean(axis=0)
    mean = float(old.sum() / new.sum() - 1)
    residuals = old - (1 + mean) * new
    se_blocks = float(np.sqrt(num_blocks / (num_blocks - 1) * (residuals**2).sum()) / new.sum())
    se_seeds = float(by_seed.std(ddof=1) / np.sqrt(num_seeds))
    reach = T_95 * float(np.hypot(se_blocks, se_seeds))
    return Gain(mean, mean - reach, mean + reach)
