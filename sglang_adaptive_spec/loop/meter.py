"""What timed rounds gave, beside what the policy had expected of them when it chose.

All sums only grow, so the metrics thread may read them at any time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.config.file import config_error
from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.protocol import Policy
from sglang_adaptive_spec.size_classes import size_class
from sglang_adaptive_spec.tiers import DecodeBatch, Tier
from sglang_adaptive_spec.trace.record import TraceRecorder


@dataclass(slots=True)
class TimedRounds:
    """Sums over the timed rounds of one tier: what they gave, and what had been expected."""

    num_rounds: int = 0
    tokens: int = 0  # accepted drafts and bonus tokens, all requests
    ms: float = 0.0
    expected_tokens: float = 0.0
    expected_ms: float = 0.0

    def describe(self) -> dict[str, Any]:
        """Returns the sums and both rates, None where there is nothing to divide by."""
        return {
            "num_rounds": self.num_rounds,
            "tokens": self.tokens,
            "ms": round(self.ms, 3),
            "expected_tokens": round(self.expected_tokens, 3),
            "expected_ms": round(self.expected_ms, 3),
            "tokens_per_ms": _ratio(self.tokens, self.ms),
            "expected_tokens_per_ms": _ratio(self.expected_tokens, self.expected_ms),
        }


@dataclass(slots=True)
class Spent:
    """Sums over the timed rounds of one tier and range of batch sizes."""

    num_rounds: int = 0
    tokens: int = 0
    ms: float = 0.0


class RoundMeter:
    """Owns the sums."""

    def __init__(self, tiers: Iterable[Tier], has_decisions: bool = True) -> None:
        """Takes the tiers of the server and whether its policy weighs them against each other."""
        self._has_decisions = has_decisions
        self.by_tier = {tier: TimedRounds() for tier in tiers}
        self.by_load: dict[tuple[Tier, int], Spent] = {}  # by tier and size_class
        self.num_catch_ups = 0  # timed zero-step rounds that caught the draft up
        self.catch_up_ms = 0.0
        self.num_probe_rounds = 0  # timed rounds of probes
        self.probe_ms = 0.0

    def add(self, done: Round) -> None:
        """Books a round whose period is known; beside the expected only if somebody weighed it."""
        period, timed = done.period, self.by_tier.get(done.tier)
        if period is None or timed is None or done.num_correct_drafts is None:
            return  # or its result was lost
        if period.num_joined:
            return  # it holds a prefill
        num_rounds, num_decodes = period.num_rounds, done.plan.num_decodes
        num_tokens = num_decodes * done.batch.size + sum(done.num_correct_drafts)
        load = (done.tier, size_class(done.batch.size))
        spent = self.by_load.get(load)
        if spent is None:
            spent = self.by_load[load] = Spent()
        spent.num_rounds += num_rounds
        spent.tokens += num_rounds * num_tokens
        spent.ms += num_rounds * period.ms
        expected = self._expected(done)
        if expected is None:
            return
        timed.num_rounds += num_rounds
        timed.tokens += num_rounds * num_tokens
        timed.ms += num_rounds * period.ms
        timed.expected_tokens += num_rounds * num_decodes * expected[0]
        timed.expected_ms += num_rounds * num_decodes * expected[1]
        if done.plan.is_catch_up:
            self.num_catch_ups += num_rounds
            self.catch_up_ms += num_rounds * period.ms
        if done.is_probe:
            self.num_probe_rounds += num_rounds
            self.probe_ms += num_rounds * period.ms

    def _expected(self, done: Round) -> tuple[float, float] | None:
        """Returns the tokens and ms that the policy expected of such a round when it chose it."""
        if not self._has_decisions:
            return 0.0, 0.0
        decision = done.decision
        return None if decision is None else decision.expected(done.plan, done.batch.size)


def open_recorder(
    config: AdaptiveConfig, name: str, replica: int | None = None
) -> TraceRecorder | None:
    """Returns the recorder that ``config`` asks for, None if it asks for none.

    Args:
        config: Its key ``record`` is the path.
        name: What the trace is called.
        replica: Makes the file one's own where several servers of one config start.

    Raises:
        ConfigError: The file cannot be written.
    """
    if config.record is None:
        return None
    path = Path(config.record)
    if replica is not None:
        path = path.with_stem(f"{path.stem}-{replica}")
    try:
        return TraceRecorder(path, name=name, max_steps=max(1, *config.candidate_steps))
    except OSError as error:
        raise config_error(
            config.source,
            f"record names {path}, which cannot be written ({error.strerror})",
            "the path of a file in a folder that exists and may be written",
            "create the folder, name another path, or remove record",
        ) from error


def policy_state(policy: Policy, meter: RoundMeter, newest: DecodeBatch) -> dict[str, Any]:
    """Returns what a policy knows and what came of it, for /server_info; plain builtins only."""
    state, timed = policy.state(newest), meter.by_tier.items()
    if state["decisions"] is not None:
        timed_ms = sum(each.ms for each in meter.by_tier.values())
        state["decisions"]["probing"] |= {
            "num_timed_rounds": meter.num_probe_rounds,
            "timed_ms": round(meter.probe_ms, 3),
            "measured_share_of_time": _ratio(meter.probe_ms, timed_ms),
        }
    return {
        **state,
        "timed_rounds": {tier.label: each.describe() for tier, each in timed},
        "catch_ups": {"num_timed_rounds": meter.num_catch_ups, "ms": round(meter.catch_up_ms, 3)},
    }


def _ratio(value: float, by: float) -> float | None:
    return round(value / by, 5) if by else None
