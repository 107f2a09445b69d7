"""Where a GPU waits for its CPU, read from a trace of torch's profiler under steady load.

The measuring plugin names what the scheduler does (measure_plugin.py:Phases); a trace has, beside
those ranges, every call into CUDA and every kernel. Two questions: which calls held the scheduler
up, and what was it doing while the GPU had nothing to run?
"""

import gzip
import json
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.inject.measure_plugin import RANGE
from benchmarks.lab.load import post_json

LONG_US = 200.0  # a call or a gap shorter than that is not looked at
LONGEST_US = 1e5  # and none lasts longer
TRACE_TIMEOUT_S = 60.0
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")

Event = Mapping[str, Any]


class Span(NamedTuple):
    """Something with a name, from a time to another, in us."""

    start: float
    end: float
    name: str


class Spans:
    """Finds the span around a time; of spans within spans the innermost."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)
        self._starts = [span.start for span in self._spans]

    def around(self, at: float) -> str:
        """Returns the name of the span around ``at``; '-' if there is none."""
        for idx in range(bisect_right(self._starts, at) - 1, -1, -1):
            if self._spans[idx].end >= at:
                return self._spans[idx].name
            if at - self._starts[idx] > LONGEST_US:
                break
        return "-"


def trace_of(url: str, folder: Path, seconds: float) -> list[Event]:
    """Has the server at ``url`` trace so many seconds into ``folder``; returns the events.

    Raises:
        RuntimeError: No trace came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    body = {"output_dir": str(folder), "activities": ["CPU", "GPU"], "with_stack": False}
    post_json(f"{url}/start_profile", body, TRACE_TIMEOUT_S)
    time.sleep(seconds)
    post_json(f"{url}/stop_profile", {}, TRACE_TIMEOUT_S)
    deadline = time.monotonic() + TRACE_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := sorted(folder.rglob("*.trace.json.gz")):
            with gzip.open(found[0]) as trace:
                return list(json.load(trace)["traceEvents"])
        time.sleep(0.5)
    raise RuntimeError(f"no trace within {TRACE_TIMEOUT_S:.0f} s in {folder}")


def stalls(events: Sequence[Event]) -> list[list[Any]]:
    """Returns what held the CPU or left the GPU idle, most first.

    Returns:
        Rows: `call`, `idle` or, for scale, a whole `phase`; the phase, the call (of a gap: the one
        under way in its middle), PyTorch's operation around it, how often, ms.
    """
    complete = [each for each in events if each.get("ph") == "X"]
    thread = next((each["tid"] for each in complete if is_phase(each)), None)
    here = [each for each in complete if each["tid"] == thread]
    ranges = list(spans(each for each in here if is_phase(each)))
    phases = Spans(ranges)
    operations = Spans(list(spans(each for each in here if each.get("cat") == "cpu_op")))
    calls = list(spans(each for each in here if each.get("cat") in CALLS))
    all_calls = Spans(calls)
    found: dict[tuple[str, ...], list[float]] = {}

    def add(kind: str, at: float, us: float) -> None:
        inside = ("-", "-") if kind == "phase" else (all_calls.around(at), operations.around(at))
        where = (kind, phases.around(at), *inside)
        took = found.setdefault(where, [0, 0.0])
        took[0] += 1
        took[1] += us / 1e3

    for start, end, _ in ranges:
        add("phase", (start + end) / 2, end - start)
    for start, end, _ in calls:
        if end - start >= LONG_US:
            add("call", (start + end) / 2, end - start)
    for start, end in gaps(list(spans(each for each in complete if each.get("cat") in ON_GPU))):
        add("idle", (start + end) / 2, end - start)
    rows = [[*where, int(num), round(ms, 3)] for where, (num, ms) in found.items()]
    return sorted(rows, key=lambda row: -row[-1])


def is_phase(event: Event) -> bool:
    """Returns whether an event is a phase of the scheduler's, on the CPU."""
    return event.get("cat") == "user_annotation" and str(event["name"]).startswith(RANGE)


def spans(events: Iterator[Event]) -> Iterator[Span]:
    """Returns the spans of events, phases without what marks them."""
    for each in events:
        name = str(each["name"]).removeprefix(RANGE)
        yield Span(float(each["ts"]), float(each["ts"]) + float(each["dur"]), name)


def gaps(busy: Sequence[Span]) -> list[tuple[float, float]]:
    """Returns from when to when nothing ran, where that was long; spans may overlap."""
    found, free_from = [], None
    for start, end, _ in sorted(busy):
        if free_from is not None and start - free_from >= LONG_US:
            found.append((free_from, start))
        free_from = end if free_from is None else max(free_from, end)
    return found
