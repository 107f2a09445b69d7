"""Round times by depth: from windows to cells, arms by name, and what a plan lacks."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inject.plan_plugin import WITHOUT_ENV
from benchmarks.studies.flashinfer_verify import (
    FLASHINFER,
    arms_of,
    build_result,
    check_flashinfer_verify,
    figure_table,
    figures,
    round_table,
)

ORIGIN = {"git_sha": "a", "gpu": "NVIDIA H200"}


def window(arm: str, depth: int, ms: float, number: int = 0) -> dict[str, Any]:
    place = {"context": 150, "batch": 16, "pass": number, "depth": depth}
    return {"arm": arm, **place, "rounds": 40, "ms": ms, "wait_ms": ms / 4, "eager": 0}


WINDOWS = [
    *(window("after", 3, ms, number) for number, ms in enumerate((8.0, 10.0, 9.0))),
    window("fa3", 3, 8.0),
    window("after", 7, 12.0),
]


def test_a_cell_is_the_median_of_its_passes_and_how_far_they_reach() -> None:
    result = build_result(ORIGIN, WINDOWS, [])
    cells = result["round_ms"]["150"]["16"]
    assert cells["static-3"] == {
        "after": {"ms": 9.0, "min": 8.0, "max": 10.0},
        "fa3": {"ms": 8.0, "min": 8.0, "max": 8.0},
    }
    assert result["wait_ms"]["150"]["16"]["static-3"] == {"after": 2.25, "fa3": 2.0}
    assert check_flashinfer_verify(result) == []
    assert "9.00" in round_table(result)
    result["round_ms"]["150"]["16"]["static-7"]["after"]["ms"] = 11.0
    assert check_flashinfer_verify(result)


def test_limits_are_judged_pass_by_pass() -> None:
    windows = [  # contexts grow by half from pass to pass, alike in both
        {**window(arm, 1, ms * 1.5**number, number), "batch": 24}
        for arm, ms in (("after", 10.0), ("fa3", 8.0))
        for number in range(3)
    ]
    (claim,) = figures(build_result(ORIGIN, windows, []))
    assert claim.ratio.value == pytest.approx(1.25)
    assert claim.verdict == "MISSED"
    assert "24 x 150, depth 1" in figure_table(build_result(ORIGIN, windows, []))


def args(*names: str, before: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(arms=names, before=before, dry_cpu=False)


def test_arms_are_of_one_backend_each_and_lack_one_part_at_most(tmp_path: Path) -> None:
    for name in ("sglang_adaptive_spec", "benchmarks/inject"):
        (tmp_path / name).mkdir(parents=True)
    names = ("before", "after", "fa3", "after-mask")
    before, after, fa3, without = arms_of(args(*names, before=f"abc={tmp_path}"))
    assert [arm.name for arm in (before, after, fa3, without)] == list(names)
    assert before.extra == after.extra == without.extra == FLASHINFER
    assert fa3.extra == ()
    assert before.environment is not None
    assert str(tmp_path) in before.environment["PYTHONPATH"]
    assert without.environment == {WITHOUT_ENV: "mask"}


def test_an_arm_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"\['before', 'swift'\]; allowed: \['after',"):
        arms_of(args("swift", "before"))
