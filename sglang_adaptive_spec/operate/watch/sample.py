"""What a server did between two looks at it: differences of its counters, as rates."""

from collections.abc import Mapping
from typing import Any, NamedTuple

State = Mapping[str, Any]  # the object adaptive_spec of /server_info


class Moment(NamedTuple):
    """One replica over an interval; None is what cannot be said."""

    tier: str  # in force at its end
    is_pinned: bool  # by an operator
    tokens_per_s: float
    accept_length: float | None  # of rounds that drafted
    batch: float | None  # requests, mean over rounds
    shares: dict[str, float]  # of the time of timed rounds, by tier
    measured_over_expected: float | None  # tokens/ms of timed rounds
    newest_choice: str | None  # why
    drift: float | None
    num_faults: int  # since the start


def between(before: State, after: State, seconds: float) -> Moment:
    """Returns what happened from one state to the other, ``seconds`` later."""

    def grown(key: str) -> dict[str, int]:
        old = before[key]
        return {tier: value - old.get(tier, 0) for tier, value in after[key].items()}

    rounds, requests = grown("rounds"), grown("num_request_rounds")
    correct = sum(grown("num_correct_drafts").values())
    drafted = sum(number for tier, number in requests.items() if tier != "0")
    runs = grown("zero_step_decodes")
    num_runs = sum(runs.values())
    decodes = sum(int(length) * number for length, number in runs.items())
    plain_tokens = requests.get("0", 0) * (decodes / num_runs if num_runs else 1.0)
    num_rounds = sum(rounds.values())
    return Moment(
        tier=after["current_tier"],
        is_pinned=after.get("pinned") is not None,
        tokens_per_s=(plain_tokens + drafted + correct) / seconds,
        accept_length=1 + correct / drafted if drafted else None,
        batch=sum(requests.values()) / num_rounds if num_rounds else None,
        shares=_shares(before, after),
        measured_over_expected=_measured_over_expected(before, after),
        newest_choice=_newest_choice(after),
        drift=(after.get("costs") or {}).get("drift"),
        num_faults=sum(after["fallbacks"].values()),
    )


def _shares(before: State, after: State) -> dict[str, float]:
    ms = {
        tier: timed["ms"] - before["timed_rounds"].get(tier, {}).get("ms", 0.0)
        for tier, timed in after["timed_rounds"].items()
    }
    total = sum(ms.values())
    return {tier: each / total for tier, each in ms.items() if each > 0}


def _measured_over_expected(before: State, after: State) -> float | None:
    sums = {
        name: sum(
            timed[name] - before["timed_rounds"].get(tier, {}).get(name, 0)
            for tier, timed in after["timed_rounds"].items()
        )
        for name in ("tokens", "ms", "expected_tokens", "expected_ms")
    }
    if min(sums.values()) <= 0:
        return None
    measured = sums["tokens"] / sums["ms"]
    return float(measured * sums["expected_ms"] / sums["expected_tokens"])


def _newest_choice(state: State) -> str | None:
    newest = (state.get("decisions") or {}).get("newest")
    return None if newest is None else str(newest["reason"])
