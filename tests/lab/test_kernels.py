"""Kernels of a trace: how often and how long, a decode, and what one arm runs more."""

import pytest

from benchmarks.studies.kernels import difference_table, kernels


def event(name: str, start_us: float, us: float, kind: str = "kernel") -> dict[str, object]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start_us, "dur": us}


def test_times_are_those_of_a_decode() -> None:
    ran = [event("gemm", 1000.0 * number, 800.0) for number in range(10)]
    ran += [event("copy", 1000.0 * number + 900.0, 100.0, "gpu_memcpy") for number in range(10)]
    ran += [event("aten::mm", 0.0, 5000.0, "cpu_op")]
    assert kernels(ran, ms_per_decode=2.0) == {"gemm": [2.0, 1600.0], "copy": [2.0, 200.0]}
    assert kernels([], ms_per_decode=2.0) == {}


def test_what_takes_longer_comes_first_below_the_sum() -> None:
    mine, others = {"gemm": [1.0, 50.0], "keep": [2.0, 6.0]}, {"gemm": [1.0, 49.0]}
    shown = difference_table(mine, others, ("zero", "none")).splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["all", "keep", "gemm"]
    assert float(shown[1].split()[-1]) == pytest.approx(7.0)
