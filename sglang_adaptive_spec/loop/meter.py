"""What the rounds gave beside what the policy expected of them, counted around the policy.

`WatchedPolicy` stands where the policy stood and passes every call on. On the way it adds up, per
tier, the timed rounds (loop/timing.py) and hands every observed round to a recorder, if there
is one. All sums only grow, so the metrics thread may read them at any time.

The host's results arrive in launch order, and a round's period one result later: the time that is
observed belongs to the result before the newest.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sglang_adaptive_spec.config.file import config_error
from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.protocol import Policy, results_at_once
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, RoundTime, Tier
from sglang_adaptive_spec.trace.record import TraceRecorder

MAX_LAUNCHES = 16  # chosen and not yet observed; the overlap schedule has two in flight


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


class RoundMeter:
    """Owns the sums."""

    def __init__(self, tiers: Iterable[Tier]) -> None:
        self.by_tier = {tier: TimedRounds() for tier in tiers}
        self.num_catch_ups = 0  # timed zero-step rounds that caught the draft up
        self.catch_up_ms = 0.0
        self.num_probe_rounds = 0  # timed rounds of probes
        self.probe_ms = 0.0

    def add(
        self, done: RoundTime, tokens: int, expected: tuple[float, float], is_probe: bool
    ) -> None:
        """Books a timed round; ``expected`` is its tokens and ms as the policy saw them."""
        timed = self.by_tier.get(done.tier)
        if timed is None:
            return
        num_rounds = done.num_rounds
        timed.num_rounds += num_rounds
        timed.tokens += num_rounds * tokens
        timed.ms += num_rounds * done.ms
        timed.expected_tokens += num_rounds * expected[0]
        timed.expected_ms += num_rounds * expected[1]
        if done.is_catch_up:
            self.num_catch_ups += num_rounds
            self.catch_up_ms += num_rounds * done.ms
        if is_probe:
            self.num_probe_rounds += num_rounds
            self.probe_ms += num_rounds * done.ms


class Launched(NamedTuple):
    """A round that was chosen and not yet observed."""

    batch: DecodeBatch
    is_probe: bool


class Finished(NamedTuple):
    """The newest round observed, until its time is known."""

    tier: Tier
    batch_size: int
    tokens: int
    is_probe: bool


class WatchedPolicy:
    """A policy with a meter, and a recorder if rounds are recorded."""

    def __init__(
        self, policy: Policy, tiers: Iterable[Tier], recorder: TraceRecorder | None = None
    ) -> None:
        self.policy = policy
        self.recorder = recorder
        self.meter = RoundMeter(tiers)
        self.newest = DecodeBatch(1, ())  # until the first one
        self._launched: deque[Launched] = deque(maxlen=MAX_LAUNCHES)
        self._finished: Finished | None = None
        self._before: Finished | None = None  # the result before the newest

    @property
    def ladder(self) -> Ladder:
        """The policy's."""
        return self.policy.ladder

    @property
    def results_at_once(self) -> int:
        """How many results the policy takes together next."""
        return results_at_once(self.policy)

    def choose(self, batch: DecodeBatch) -> Tier:
        """Returns the policy's choice; remembers what it was for."""
        tier = self.policy.choose(batch)
        self.newest = batch
        self._launched.append(Launched(batch, self.policy.is_probe(tier)))
        return tier

    def observe(self, observation: Observation) -> None:
        """Passes a round on, records it and keeps its tokens until its time is known."""
        launched = self._take_launched(observation.requests)
        tokens = observation.batch_size + sum(observation.num_correct_drafts)
        is_probe = launched is not None and launched.is_probe
        self._before = self._finished
        self._finished = Finished(observation.tier, observation.batch_size, tokens, is_probe)
        if self.recorder is not None and launched is not None:
            batch = launched.batch
            self.recorder.observe(observation, batch.context_tokens, batch.now_s)
        self.policy.observe(observation)

    def observe_time(self, round_time: RoundTime) -> None:
        """Books a timed round beside what was expected of it, then passes it on."""
        before = self._before
        is_known = before is not None and before[:2] == (round_time.tier, round_time.batch_size)
        if before is not None and is_known:
            policy, known = self.policy, (round_time.tier, round_time.batch_size)
            expected = policy.expected(*known) if policy.knows_costs else (0.0, 0.0)
            if expected is not None:
                self.meter.add(round_time, before.tokens, expected, before.is_probe)
        self.policy.observe_time(round_time)

    def _take_launched(self, requests: Sequence[Hashable]) -> Launched | None:
        """Returns the launch of a result; launches whose results were dropped go with it."""
        wanted = tuple(requests)
        while self._launched:
            launched = self._launched.popleft()
            if tuple(launched.batch.requests) == wanted:
                return launched
        return None


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


def policy_state(watched: WatchedPolicy) -> dict[str, Any]:
    """Returns what a policy knows, for /server_info; plain builtins only.

    Works through rounds that wait to be learned from: for the thread that runs the rounds.
    """
    meter, state = watched.meter, watched.policy.state(watched.newest)
    timed = meter.by_tier.items()
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
