"""What a server did between two of its states: differences of counters, as rates."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang_adaptive_spec.operate.spans import EXPECTED, Span

State = Mapping[str, Any]  # the object adaptive_spec of /server_info
NEEDED = ("rounds", "num_request_rounds", "timed_rounds", "current_tier", "fallbacks")


class Sample(NamedTuple):
    """One replica over an interval; None is what cannot be said."""

    tier: str  # in force at its end
    is_pinned: bool  # by an operator
    tokens_per_s: float
    accept_length: float | None  # of rounds that drafted
    batch: float | None  # requests, mean over rounds
    packed: float | None  # share of rounds that verified another number of drafts per request
    shares: dict[str, float]  # of the time of timed rounds, by tier
    measured_over_expected: float | None  # tokens/ms of timed rounds
    newest_choice: str | None  # why
    drift: float | None
    num_faults: int  # since the start


def between(before: State, after: State, seconds: float) -> Sample:
    """Returns what happened from one state to the other, ``seconds`` later."""
    span = _span(before, after, seconds)
    total_ms = sum(span.ms.values())
    newest = (after.get("decisions") or {}).get("newest")
    return Sample(
        tier=after["current_tier"],
        is_pinned=after.get("pinned") is not None,
        tokens_per_s=span.tokens / seconds,
        accept_length=span.accept_length,
        batch=span.batch if span.num_rounds else None,
        packed=span.packed / span.num_rounds if span.num_rounds else None,
        shares={tier: ms / total_ms for tier, ms in span.ms.items() if ms > 0},
        measured_over_expected=_measured_over_expected(*span.expected),
        newest_choice=None if newest is None else str(newest["reason"]),
        drift=(after.get("costs") or {}).get("drift"),
        num_faults=sum(after["fallbacks"].values()),
    )


def _span(before: State, after: State, seconds: float) -> Span:
    def grown(key: str) -> dict[str, int]:
        old = before.get(key, {})  # an older server does not have all
        return {tier: value - old.get(tier, 0) for tier, value in after.get(key, {}).items()}

    def timed(name: str) -> dict[str, float]:
        old = before["timed_rounds"]
        sums = after["timed_rounds"].items()
        return {tier: each[name] - old.get(tier, {}).get(name, 0) for tier, each in sums}

    span = Span(
        0.0,
        seconds,
        rounds=grown("rounds"),
        request_rounds=grown("num_request_rounds"),
        packed=sum(grown("packed_rounds").values()),
        correct=sum(grown("num_correct_drafts").values()),
        ms=timed("ms"),
        expected=[sum(timed(name).values()) for name in EXPECTED],
    )
    span.count_tokens(grown("zero_step_decodes"))
    return span


def _measured_over_expected(
    tokens: float, ms: float, expected_tokens: float, expected_ms: float
) -> float | None:
    if min(tokens, ms, expected_tokens, expected_ms) <= 0:
        return None
    return tokens / ms * expected_ms / expected_tokens
