"""Stretches of time, one after the other, and what the rounds in each gave.

Minutes of a server are such (loop/minutes.py), and so is what happened between two of its states
(watch/sample.py); a trace is cut into as many of equal length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive_spec.tiers import chain_tier
from sglang_adaptive_spec.trace.format import Trace

SPANS_OF_A_TRACE = 120
LONGEST_ROUND_S = 1.0  # between two rounds of a trace: beyond it the server was idle
PLAIN = "0"
EXPECTED = ("tokens", "ms", "expected_tokens", "expected_ms")
SUMMED = (
    *("waiting", "retractions", "prefill_ms", "probe_ms", "switches", "faults"),
    *("packed", "unverified"),
)


@dataclass
class Span:
    """What rounds gave from ``start_s`` on; sums over requests unless they say otherwise."""

    start_s: float
    seconds: float
    tokens: float = 0.0
    rounds: dict[str, int] = field(default_factory=dict)  # by tier
    request_rounds: dict[str, int] = field(default_factory=dict)  # by tier
    packed: int = 0  # rounds that verified another number of drafts per request
    unverified: int = 0  # drafts of those
    correct: int = 0
    ms: dict[str, float] = field(default_factory=dict)  # of rounds, by tier
    # By tier and range of batch sizes: timed rounds, their ms, their tokens. None of a trace.
    loads: dict[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)
    waiting: float = 0.0  # summed over rounds
    most_waiting: int = 0
    retractions: int = 0
    prefill_ms: float = 0.0
    probe_ms: float = 0.0
    # Of timed rounds: tokens, ms, and what the policy had expected of both.
    expected: list[float] = field(default_factory=lambda: [0.0] * len(EXPECTED))
    switches: int = 0  # without those to what a table has for one round, which are wanted
    moves: dict[str, int] = field(default_factory=dict)
    faults: int = 0

    @property
    def num_rounds(self) -> int:
        """Decode rounds."""
        return sum(self.rounds.values())

    @property
    def batch(self) -> float:
        """Requests of a round, mean."""
        return sum(self.request_rounds.values()) / max(self.num_rounds, 1)

    @property
    def drafted(self) -> int:
        """Request-rounds that drafted."""
        return sum(number for tier, number in self.request_rounds.items() if tier != PLAIN)

    @property
    def proposed(self) -> int:
        """Drafts that the target verified."""
        drafts = sum(num_drafts(tier) * number for tier, number in self.request_rounds.items())
        return drafts - self.unverified

    @property
    def accept_length(self) -> float | None:
        """Tokens of a request in a round that drafted, mean; None where none did."""
        return 1 + self.correct / self.drafted if self.drafted else None

    def count_tokens(self, runs: Mapping[str, int]) -> None:
        """Sets the tokens; ``runs`` has the zero-step rounds by their decodes."""
        decodes = sum(int(length) * number for length, number in runs.items())
        plain = self.request_rounds.get(PLAIN, 0) * decodes / max(sum(runs.values()), 1)
        self.tokens = plain + self.drafted + self.correct


def num_drafts(label: str) -> int:
    """Returns the drafts of a request and round at a tier of this name."""
    return int(label.rpartition("-")[2]) - ("-" in label)


def of_minutes(rows: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Returns a span a minute."""
    return [_of_minute(row) for row in rows]


def _of_minute(row: Mapping[str, Any]) -> Span:
    span = Span(row["start"], row["seconds"], rounds=dict(row.get("rounds", {})))
    for tier, histogram in row.get("accepted", {}).items():
        span.request_rounds[tier] = sum(histogram.values())
        span.correct += sum(int(accepted) * number for accepted, number in histogram.items())
    packed = row.get("packed", {}).values()
    span.packed = sum(each["rounds"] for each in packed)
    span.unverified = sum(each.get("unverified", 0) for each in packed)
    span.count_tokens(row.get("runs", {}))
    for tier, ranges in row.get("timed", {}).items():
        for sizes, each in ranges.items():
            timed = (each.get("rounds", 0), each.get("ms", 0.0), each.get("tokens", 0))
            span.loads[tier, sizes] = timed
            _add(span.ms, tier, timed[1])
    sums = row.get("sums", {})
    span.expected = [sums.get(name, 0.0) for name in EXPECTED]
    span.waiting, span.most_waiting = row.get("waiting", 0), row.get("most_waiting", 0)
    span.retractions = row.get("retractions", 0)
    span.prefill_ms = row.get("prefills", {}).get("ms", 0.0)
    span.probe_ms = row.get("probes", {}).get("ms", 0.0)
    switches = row.get("switches", {})
    span.switches = sum(switches.values()) - switches.get("found", 0)
    span.moves = dict(row.get("policy", {}).get("moves", {}))
    span.faults = row.get("faults", 0)
    return span


def of_trace(trace: Trace, number: int = SPANS_OF_A_TRACE) -> list[Span]:
    """Returns spans of equal length, those without a round left out; times count from its start."""
    rounds = trace.rounds
    start_s, end_s = rounds[0].time_s, rounds[-1].time_s
    length_s = max((end_s - start_s) / number, 1e-3)
    found: dict[int, Span] = {}
    last = ""
    for idx, one in enumerate(rounds):
        place = min(int((one.time_s - start_s) / length_s), number - 1)
        span = found.setdefault(place, Span(place * length_s, length_s))
        tier, size = chain_tier(one.num_steps).label, len(one.requests)
        _add(span.rounds, tier, 1)
        _add(span.request_rounds, tier, size)
        if one.is_packed and one.kept is not None:
            span.packed += 1
            span.unverified += size * one.num_steps - sum(one.kept)
        span.correct += sum(one.num_correct_drafts)
        span.tokens += one.num_tokens
        # Where a table was asked, a tier for one round is wanted, as in minutes.
        span.switches += bool(last) and tier != last and one.found is None
        last = tier
        if idx + 1 < len(rounds):
            seconds = rounds[idx + 1].time_s - one.time_s
            if seconds <= LONGEST_ROUND_S:
                _add(span.ms, tier, 1e3 * seconds)
    return [found[place] for place in sorted(found)]


def total(spans: Sequence[Span]) -> Span:
    """Returns all of them as one."""
    whole = Span(spans[0].start_s, sum(span.seconds for span in spans))
    for span in spans:
        whole.tokens += span.tokens
        whole.correct += span.correct
        for name in SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(span, name))
        for name in ("rounds", "request_rounds", "ms", "moves"):
            for key, number in getattr(span, name).items():
                _add(getattr(whole, name), key, number)
        for load, timed in span.loads.items():
            old = whole.loads.get(load, (0.0, 0.0, 0.0))
            whole.loads[load] = (old[0] + timed[0], old[1] + timed[1], old[2] + timed[2])
        whole.most_waiting = max(whole.most_waiting, span.most_waiting)
        whole.expected = [a + b for a, b in zip(whole.expected, span.expected, strict=True)]
    whole.rounds = {tier: whole.rounds[tier] for tier in sorted(whole.rounds, key=num_drafts)}
    return whole


def _add(sums: dict[str, Any], key: str, number: float) -> None:
    sums[key] = sums.get(key, 0) + number
