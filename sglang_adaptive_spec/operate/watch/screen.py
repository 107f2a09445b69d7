"""Shows samples: a line each over a pipe, a table that is drawn anew on a terminal."""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sglang_adaptive_spec.operate.server import adaptive_states, require, tier_labels
from sglang_adaptive_spec.operate.watch.sample import NEEDED, Sample, State, between

TIMELINE = 60  # samples
BARS = "▁▂▃▄▅▆▇█"
HEAD = (
    *("server", "steps", "tokens/s", "accept length", "batch", "packed", "time by steps"),
    *("measured / expected", "newest choice", "drift", "faults"),
)


class Watched:
    """One server: what it said last, and the tiers of the last minute."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url, self._api_key = url, api_key
        self._last: Sequence[State] = ()
        self._last_s = 0.0
        self.timelines: list[deque[str]] = []
        self.labels: list[str] = []  # of its tiers, smallest first

    def sample(self) -> list[Sample]:
        """Returns a sample a replica; none at the first call.

        Raises:
            ServerError: The server does not answer, is static, or of an older plugin.
        """
        states, now_s = adaptive_states(self.url, self._api_key), time.monotonic()
        require(self.url, states, NEEDED)
        self.labels = tier_labels(states[0])
        pairs = zip(self._last, states, strict=False)
        samples = [between(old, new, now_s - self._last_s) for old, new in pairs]
        self._last, self._last_s = states, now_s
        if len(self.timelines) != len(states):
            self.timelines = [deque(maxlen=TIMELINE) for _ in states]
        for timeline, sample in zip(self.timelines, samples, strict=False):
            timeline.append(sample.tier)
        return samples

    def bars(self, timeline: Iterable[str]) -> str:
        """Returns tiers as bars: the smallest tier is the lowest one, the largest the highest."""
        most = max(len(self.labels) - 1, 1)
        places = (self.labels.index(tier) for tier in timeline)
        return "".join(BARS[place * (len(BARS) - 1) // most] for place in places)

    def names(self) -> list[str]:
        """Returns what its replicas are called."""
        number = len(self.timelines)
        return [self.url if number == 1 else f"{self.url} #{idx}" for idx in range(number)]


def cells(name: str, sample: Sample) -> tuple[str, ...]:
    """Returns a sample as text, in the order of `HEAD`."""
    shares = " ".join(f"{tier}:{share:.2f}" for tier, share in sample.shares.items())
    return (
        name,
        f"{sample.tier} (pinned)" if sample.is_pinned else sample.tier,
        f"{sample.tokens_per_s:.1f}",
        _number(sample.accept_length),
        _number(sample.batch, 1),
        _number(sample.packed),
        shares or "-",
        _number(sample.measured_over_expected),
        sample.newest_choice or "-",
        _number(sample.drift),
        str(sample.num_faults),
    )


def samples_of(
    servers: Sequence[Watched], interval_s: float
) -> Iterator[list[tuple[str, Sample, str]]]:
    """Yields, an interval, what every replica is called, did, and had in force; without end."""
    for server in servers:
        server.sample()
    while True:
        time.sleep(interval_s)
        rows: list[tuple[str, Sample, str]] = []
        for server in servers:
            samples = server.sample()
            bars = map(server.bars, server.timelines)
            rows += zip(server.names(), samples, bars, strict=False)
        yield rows


def lines(servers: Sequence[Watched], interval_s: float) -> Iterator[str]:
    """Yields a line a replica and interval, without end."""
    for rows in samples_of(servers, interval_s):
        clock = time.strftime("%H:%M:%S")
        for name, sample, _ in rows:
            shown = zip(HEAD[1:], cells(name, sample)[1:], strict=True)
            yield f"{clock} {name}  " + "  ".join(f"{key} {value}" for key, value in shown)


def json_lines(servers: Sequence[Watched], interval_s: float) -> Iterator[str]:
    """Yields the same as JSON: a sample with its replica and when it ended, seconds since 1970."""
    for rows in samples_of(servers, interval_s):
        now_s = round(time.time(), 3)
        for name, sample, _ in rows:
            yield json.dumps({"server": name, "time_s": now_s, **sample._asdict()})


def tables(servers: Sequence[Watched], interval_s: float) -> Iterator[Any]:
    """Yields a table of all servers an interval, with the tiers of the last minute."""
    from rich.table import Table

    for rows in samples_of(servers, interval_s):
        table = Table(*HEAD, f"steps, last {TIMELINE} looks")
        for name, sample, bars in rows:
            table.add_row(*cells(name, sample), bars)
        yield table


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
