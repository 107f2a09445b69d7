"""Launches of a trace: which calls ran something on the GPU, a round, beyond the host's."""

from typing import Any

import pytest

from benchmarks.studies.launches import (
    GRAPH,
    build_result,
    check_launches,
    figure_table,
    launches,
    more_tables,
)
from tests.lab.records import PROVENANCE

SCHEDULER, OTHER = 1, 2


def event(cat: str, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """A complete event of a trace."""
    where = {"ts": start, "dur": end - start, "tid": SCHEDULER}
    return {"ph": "X", "cat": cat, "name": name, **where, **more}


def launched(name: str, at: float, number: int, call: str = "cudaLaunchKernel") -> list[Any]:
    """A call, and what it ran a little later on the GPU."""
    which = {"args": {"correlation": number}}
    return [
        event("cuda_runtime", call, at, at + 5, **which),
        event("kernel", name, at + 50, at + 60, **{**which, "tid": 77}),
    ]


def round_of(number: int, num_kept: int) -> list[Any]:
    """A round of 1,000 us: a graph of two kernels, and so many copies in an operation."""
    start = 1000.0 * number
    return [
        event("user_annotation", "bench: launch decode", start, start + 500),
        *launched("gemm", start + 10, 100 * number, "cudaGraphLaunch"),
        event("kernel", "norm", start + 70, start + 72, tid=77, args={"correlation": 100 * number}),
        event("cpu_op", "aten::copy_", start + 100, start + 300),
        *(
            each
            for copy in range(num_kept)
            for each in launched("copy", start + 110 + copy, 100 * number + 1 + copy)
        ),
        event("cuda_runtime", "cudaEventRecord", start + 400, start + 410, args={"correlation": 7}),
    ]


def trace(*num_kept: int) -> list[Any]:
    """Rounds one after the other; the last one only ends the one before."""
    return [each for number, kept in enumerate((*num_kept, 0)) for each in round_of(number, kept)]


def test_a_graph_is_one_launch_and_calls_that_run_nothing_are_none() -> None:
    found = launches(trace(1, 1, 4))
    assert found.num_rounds == 3
    assert found.usual == 2
    assert found.rows == [
        ("launch decode", "-", GRAPH, 1.0, 12.0),
        ("launch decode", "aten::copy_", "copy", 2.0, 20.0),
    ]


def test_what_the_gpu_waits_between_is_named() -> None:
    found = launches(trace(1, 1, 1))
    # gemm 60-70, norm 70-72, copy 160-170, and the next round at 1,060.
    assert [gap[:2] for gap in found.gaps] == [("copy", "gemm"), ("norm", "copy")]
    assert [gap[3] for gap in found.gaps] == pytest.approx([890, 88], rel=0.1)
    assert found.idle_us == pytest.approx(978, rel=0.1)


def test_a_trace_without_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="1 decode rounds in the trace"):
        launches(trace())
    with pytest.raises(ValueError, match="nothing ran on a GPU"):
        launches([each for each in trace(1) if each["cat"] not in ("kernel", "cpu_op")])


def record(num_kept: int) -> dict[str, Any]:
    """A result of no speculation beside our zero steps."""
    traces = [
        {"arm": arm, "steps": 0, "batch": 16, **launches(trace(kept, kept))._asdict()}
        for arm, kept in (("none", 1), ("goodput", num_kept))
    ]
    return build_result(PROVENANCE, traces)


def test_zero_steps_may_launch_two_more_than_none() -> None:
    assert "  met" in figure_table(record(3))
    assert "MISSED" in figure_table(record(4))


def test_what_ours_launches_more_is_named() -> None:
    shown = more_tables(record(4)).splitlines()
    assert len(shown) == 2
    assert (
        shown[1].split()[-5:] == ["aten::copy_", "copy", "3.0000", "30.0000"][-5:]
        or "copy" in shown[1]
    )


def test_figures_that_do_not_follow_from_the_traces_are_found() -> None:
    result = record(3)
    assert check_launches(result) == []
    result["a_round"]["0"]["16"]["goodput"]["usual"] = 1
    assert check_launches(result)
