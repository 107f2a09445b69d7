"""What the GPU ran, kernel by kernel, from a trace of torch's profiler."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.tables import table
from benchmarks.studies.defaults.stalls import ON_GPU, Event, spans

SHOWN_CHARS = 60  # of a kernel's name
MOST_SHOWN = 20

NOTHING = (0.0, 0.0)

Times = Mapping[str, Sequence[float]]  # by kernel: how often and how many us, a decode


def kernels(events: Sequence[Event], ms_per_decode: float) -> dict[str, list[float]]:
    """Returns per kernel how often it ran and how many us it took, both a decode.

    Args:
        events: of a trace under steady load.
        ms_per_decode: as windows without a trace have it; the GPU bounds it, or this means little.
    """
    ran = list(spans(each for each in events if each.get("ph") == "X" and is_on_gpu(each)))
    if not ran:
        return {}
    num_decodes = (max(each.end for each in ran) - min(each.start for each in ran)) / 1e3
    num_decodes /= ms_per_decode
    found: dict[str, list[float]] = {}
    for start, end, name in ran:
        times = found.setdefault(name[:SHOWN_CHARS], [0.0, 0.0])
        times[0] += 1 / num_decodes
        times[1] += (end - start) / num_decodes
    return {name: [round(each, 3) for each in times] for name, times in found.items()}


def is_on_gpu(event: Event) -> bool:
    """Returns whether a device ran it."""
    return event.get("cat") in ON_GPU


def difference_table(mine: Times, others: Times, arms: Sequence[str]) -> str:
    """Returns the kernels that take longer in one arm than in another, most first."""
    names = {*mine, *others}
    more = {name: _us(mine, name) - _us(others, name) for name in names}
    most = sorted(names, key=lambda name: -more[name])[:MOST_SHOWN]
    rows: list[tuple[Any, ...]] = [("all", *_sums(mine), *_sums(others), sum(more.values()))]
    rows += [
        (name, *mine.get(name, NOTHING), *others.get(name, NOTHING), more[name]) for name in most
    ]
    head = [f"{what} {arm}" for arm in arms for what in ("times", "us")]
    return table(("kernel, a decode", *head, "us more"), rows)


def _us(times: Times, name: str) -> float:
    return times.get(name, NOTHING)[1]


def _sums(times: Times) -> tuple[float, float]:
    return sum(each[0] for each in times.values()), sum(each[1] for each in times.values())
