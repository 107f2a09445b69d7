"""How fast every arm was: by phase, in pairs of answers to one prompt, and beside an oracle."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.demo.arms import OURS, Arm
from examples.demo.prompts import PHASES
from examples.demo.traffic import Answer, Lane, Snapshot

# Two-sided 95 % quantile of Student's distribution by degrees of freedom; then about the normal's.
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)
NORMAL_95 = 2.0


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One server's answers, in the order of the prompts."""

    arm: Arm
    argv: list[str]
    ready_s: float
    answers: list[Answer]
    snapshots: list[Snapshot]
    adaptive_spec: dict[str, Any] | None = None  # /server_info after the last answer

    @classmethod
    def of(cls, arm: Arm, lane: Lane, argv: list[str], ready_s: float) -> "ArmResult":
        """Returns what a lane did, and what its server says at the end."""
        spec = lane.server.internal_state().get("adaptive_spec")
        return cls(arm, argv, ready_s, lane.answers, lane.snapshots, spec)

    @property
    def name(self) -> str:
        """The arm's."""
        return self.arm.name


@dataclass(frozen=True, slots=True)
class Figures:
    """Speed and acceptance over some answers."""

    num_tokens: int
    seconds: float
    num_rounds: int
    num_correct_drafts: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of request time."""
        return self.num_tokens / self.seconds

    @property
    def accept_length(self) -> float:
        """Tokens per round, the bonus token included."""
        return self.num_correct_drafts / self.num_rounds + 1

    def to_json(self) -> dict[str, float]:
        """Returns sums and rates."""
        rates = {"tokens_per_s": self.tokens_per_s, "accept_length": self.accept_length}
        return {**asdict(self), **rates}


@dataclass(frozen=True, slots=True)
class Paired:
    """How much faster one arm answered the same prompts than another: a ratio of tokens/s."""

    value: float
    low: float  # ends of the 95 % interval
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def figures_of(answers: Sequence[Answer]) -> Figures:
    """Sums up answers."""
    return Figures(
        num_tokens=sum(len(answer.output_ids) for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
        num_rounds=sum(answer.num_rounds for answer in answers),
        num_correct_drafts=sum(answer.num_correct_drafts for answer in answers),
    )


def by_phase(result: ArmResult) -> dict[str, Figures]:
    """Returns the figures of each phase."""
    return {p: figures_of([a for a in result.answers if a.phase == p]) for p in PHASES}


def paired(mine: ArmResult, other: ArmResult) -> Paired:
    """Returns the geometric mean over prompts of how much faster ``mine`` answered.

    Its error is the scatter of prompts within a phase: phases differ by design.
    """
    logs: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for one, two in zip(mine.answers, other.answers, strict=True):
        logs[one.phase].append(math.log(two.seconds / one.seconds))
    number = sum(map(len, logs.values()))
    mean = sum(map(sum, logs.values())) / number
    freedom = number - len(logs)
    if freedom < 1:
        return Paired(math.exp(mean), 0.0, math.inf)
    squares = sum((log - statistics.fmean(phase)) ** 2 for phase in logs.values() for log in phase)
    quantile = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95
    reach = quantile * math.sqrt(squares / freedom / number)
    return Paired(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def pairs_of(results: Sequence[ArmResult]) -> dict[str, Paired]:
    """Returns ADAPTIVE_EAGLE over every other arm."""
    ours = named(results)[OURS]
    return {each.name: paired(ours, each) for each in results if each.name != OURS}


def oracle_seconds(results: Sequence[ArmResult]) -> float:
    """Returns how long all prompts take who knows the best fixed arm of each phase."""
    fixed = [by_phase(each) for each in results if each.arm.is_fixed]
    return sum(min(figures[phase].seconds for figures in fixed) for phase in PHASES)


def named(results: Sequence[ArmResult]) -> dict[str, ArmResult]:
    """Returns the results by the names of their arms."""
    return {each.name: each for each in results}


def tier_shares(result: ArmResult) -> dict[str, dict[str, float]]:
    """Returns the share of rounds of each tier by phase; nothing of who does not count them."""
    shares: dict[str, dict[str, float]] = {}
    for phase in PHASES:
        rounds: Counter[str] = Counter()
        for answer in result.answers:
            if answer.phase == phase:
                rounds.update(answer.rounds)
        if total := sum(rounds.values()):
            shares[phase] = {tier: count / total for tier, count in rounds.items()}
    return shares
