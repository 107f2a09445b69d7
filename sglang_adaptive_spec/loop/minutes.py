"""What the server did, minute by minute, for a day: for whoever asks afterwards.

Rounds only add to sums that are there anyway, and compare a clock. Once a minute the first round
or extend after it writes down what the sums gained, as text, so that a day takes some hundred KB
and no reader meets a row that changes. A minute without either has no row.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.meter import RoundMeter
from sglang_adaptive_spec.size_classes import size_range

MINUTE_S = 60
MOST_MINUTES = 24 * 60

Sums = dict[tuple[str, ...], float]  # by where they stand in a row


class Minutes:
    """Owns the rows.

    Args:
        counters: of all rounds.
        meter: of timed rounds.
        policy_totals: sums by name and label (policy/protocol.py:Policy.totals).
        num_retractions: since the start; of the host.
        clock_s: the clock of `DecodeBatch.now_s`.
        wall_s: seconds since 1970, when this is made.
    """

    def __init__(
        self,
        counters: RoundCounters,
        meter: RoundMeter,
        policy_totals: Callable[[], Mapping[str, Mapping[str, float]]],
        num_retractions: Callable[[], int] = lambda: 0,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: float | None = None,
    ) -> None:
        self._counters, self._meter = counters, meter
        self._policy_totals, self._num_retractions = policy_totals, num_retractions
        self._clock_s = clock_s
        self._ahead_s = (time.time() if wall_s is None else wall_s) - clock_s()
        self._rows: deque[str] = deque(maxlen=MOST_MINUTES)
        self._start_s = clock_s()  # of the minute that is being summed
        self.ends_s = self._end_of(self._start_s)  # a round at or after it closes the minute
        self._prefill_s: float | None = None  # when the newest extend began, if it is the newest
        self.num_prefills, self.prefill_s = 0, 0.0
        self.waiting, self.most_waiting = 0, 0  # summed over rounds; the most in this minute
        self._before = self._sums()

    # -- once a round --

    def decode(self, now_s: float, num_waiting: int) -> None:
        """Takes note that a decode round begins while so many requests wait."""
        if self._prefill_s is not None:
            self._end_prefill(now_s)
        if now_s >= self.ends_s:
            self.close(now_s)
        self.waiting += num_waiting
        if num_waiting > self.most_waiting:
            self.most_waiting = num_waiting

    def extend(self) -> None:
        """Takes note that an extend begins."""
        now_s = self._clock_s()
        if self._prefill_s is not None:
            self._end_prefill(now_s)
        if now_s >= self.ends_s:
            self.close(now_s)
        self._prefill_s = now_s
        self.num_prefills += 1

    def idle(self) -> None:
        """Takes note that the scheduler has nothing to run: no prefill lasts until the next."""
        if self._prefill_s is not None:
            self._end_prefill(self._clock_s())

    # -- once a minute, and for whoever asks --

    def close(self, now_s: float) -> None:
        """Writes the minute down if anything ran in it, and begins the one of ``now_s``."""
        row = self._row(min(now_s, self.ends_s))
        if row is not None:
            self._rows.append(_text(row))
        self._before, self.most_waiting = self._sums(), 0
        if now_s >= self.ends_s + MINUTE_S:  # idle since
            self._start_s = self._end_of(now_s) - MINUTE_S
        else:
            self._start_s = self.ends_s
        self.ends_s = self._end_of(now_s)

    def rows(self, most: int = MOST_MINUTES) -> list[str]:
        """Returns the newest minutes as JSON, oldest first; the last one may not be over."""
        newest = self._row(min(self._clock_s(), self.ends_s))
        rows = [*self._rows, *([] if newest is None else [_text(newest)])]
        return rows[-most:]

    def _end_prefill(self, now_s: float) -> None:
        assert self._prefill_s is not None, "the caller checked this"
        self.prefill_s += now_s - self._prefill_s
        self._prefill_s = None

    def _end_of(self, now_s: float) -> float:
        """Returns the end of the clock's minute that holds ``now_s``."""
        wall_s = now_s + self._ahead_s
        return (wall_s // MINUTE_S + 1) * MINUTE_S - self._ahead_s

    def _row(self, until_s: float) -> dict[str, Any] | None:
        """Returns what the sums gained, without zeros; None if nothing ran."""
        after = self._sums()
        row: dict[str, Any] = {}
        for place, total in after.items():
            gained = total - self._before.get(place, 0)
            if gained:
                at = row
                for key in place[:-1]:
                    at = at.setdefault(key, {})
                at[place[-1]] = gained if isinstance(gained, int) else round(gained, 3)
        if not row:
            return None
        start = {"start": round(self._start_s + self._ahead_s, 3)}
        seconds = {"seconds": round(until_s - self._start_s, 3)}
        return {**start, **seconds, **row, "most_waiting": self.most_waiting}

    def _sums(self) -> Sums:
        return dict(self._totals())

    def _totals(self) -> Iterator[tuple[tuple[str, ...], float]]:
        yield from self._rounds()
        meter = self._meter
        for (tier, sizes), timed in tuple(meter.by_load.items()):
            place = ("timed", tier.label, size_range(sizes))
            yield (*place, "rounds"), timed.num_rounds
            yield (*place, "ms"), timed.ms
            yield (*place, "tokens"), timed.tokens
        for sum_of in ("tokens", "ms", "expected_tokens", "expected_ms"):
            total: float = sum(getattr(each, sum_of) for each in meter.by_tier.values())
            yield ("sums", sum_of), total
        yield ("catch_ups", "rounds"), meter.num_catch_ups
        yield ("catch_ups", "ms"), meter.catch_up_ms
        yield ("probes", "rounds"), meter.num_probe_rounds
        yield ("probes", "ms"), meter.probe_ms
        for name, by_label in self._policy_totals().items():
            for label, count in by_label.items():
                yield ("policy", name, label), count
        yield ("prefills", "number"), self.num_prefills
        yield ("prefills", "ms"), 1e3 * self.prefill_s
        yield ("waiting",), self.waiting
        yield ("retractions",), self._num_retractions()

    def _rounds(self) -> Iterator[tuple[tuple[str, ...], int]]:
        counters = self._counters
        for tier, number in tuple(counters.num_rounds.items()):
            yield ("rounds", tier.label), number
        for tier, histogram in tuple(counters.histogram.items()):
            for accepted, number in enumerate(histogram):
                yield ("accepted", tier.label, str(accepted)), number
        for tier, number in tuple(counters.num_packed.items()):
            yield ("packed", tier.label, "rounds"), number
            yield ("packed", tier.label, "unverified"), counters.num_unverified[tier]
        for decodes, number in tuple(counters.num_runs.items()):
            yield ("runs", str(decodes)), number
        for reason, number in counters.num_switches.items():
            yield ("switches", reason), number
        for reason, number in tuple(counters.num_exact_rounds.items()):
            yield ("exact", reason), number
        for reason, number in counters.num_requests.items():
            yield ("requests", reason), number
        yield ("faults",), counters.num_policy_errors + counters.num_feedback_mismatches


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))
