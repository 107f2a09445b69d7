"""Stalls in a trace: calls that held the scheduler up, and what it did while the GPU was idle."""

from typing import Any

from benchmarks.studies.defaults.stalls import Span, Spans, gaps, stalls

SCHEDULER, OTHER = 1, 2


def event(cat: str, name: str, start: float, end: float, tid: int = SCHEDULER) -> dict[str, Any]:
    """A complete event of a trace."""
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "tid": tid}


TRACE = [
    {"ph": "M", "name": "process_name"},
    event("user_annotation", "bench: launch prefill", 0, 5000),
    event("user_annotation", "bench: process decode", 5000, 9000),
    event("cpu_op", "aten::item", 900, 2100),
    event("cpu_op", "aten::_local_scalar_dense", 1000, 2000),
    event("cuda_runtime", "cudaStreamSynchronize", 1000, 2000),
    event("cuda_runtime", "cudaLaunchKernel", 2500, 2550),
    event("cuda_runtime", "cudaEventSynchronize", 6000, 8500),
    event("cuda_runtime", "cudaStreamSynchronize", 0, 9000, OTHER),
    event("kernel", "gemm", 0, 1900, 77),
    event("gpu_memcpy", "copy", 1800, 1950, 78),
    event("kernel", "gemm", 2600, 8400, 77),
]


def test_long_calls_and_gaps_are_booked_to_what_the_scheduler_did() -> None:
    assert stalls(TRACE) == [
        ["phase", "launch prefill", "-", "-", 1, 5.0],
        ["phase", "process decode", "-", "-", 1, 4.0],
        ["call", "process decode", "cudaEventSynchronize", "-", 1, 2.5],
        ["call", "launch prefill", "cudaStreamSynchronize", "aten::_local_scalar_dense", 1, 1.0],
        ["idle", "launch prefill", "-", "-", 1, 0.65],
    ]


def test_a_trace_without_the_scheduler_has_no_stalls() -> None:
    assert stalls([event("cuda_runtime", "cudaStreamSynchronize", 0, 9000)]) == []


def test_the_innermost_span_counts() -> None:
    found = Spans([Span(0, 100, "outer"), Span(10, 20, "inner"), Span(30, 40, "later")])
    assert [found.around(at) for at in (5, 15, 25, 101)] == ["outer", "inner", "outer", "-"]


def test_a_gap_is_where_nothing_ran_for_long() -> None:
    busy = [Span(0, 1000, "a"), Span(100, 300, "b"), Span(1100, 1200, "c"), Span(2000, 2100, "d")]
    assert gaps(busy) == [(1200, 2000)]
