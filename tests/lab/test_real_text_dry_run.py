"""Real text on the CPU host: every arm answers the same requests, and texts are compared."""

from pathlib import Path

import pytest

from benchmarks.stats.differences import Gap
from benchmarks.studies.real_text.__main__ import KNOWN
from benchmarks.studies.real_text.summary import (
    DOMAINS,
    build_result,
    check_real_text,
)
from tests.lab.dry_run import dry_run, write_prompts

pytestmark = pytest.mark.e2e


def test_closed_loops_of_real_servers(tmp_path: Path) -> None:
    arguments = ["run", *write_prompts(tmp_path, DOMAINS), "--traffic", "json,mixed"]
    arguments += ["--arms", "none,goodput", "--concurrency", "2", "--new-tokens", "64"]
    arguments += ["--repeats", "1", "--max-total-tokens", "8192", "--trail"]
    record = dry_run(tmp_path, "real_text", *arguments)
    passes = record["passes"]
    assert len(passes) == 4
    assert all(set(each["as_none"]) == {"1"} for each in passes)  # float32 on a CPU
    result = build_result(record["provenance"], passes, record["servers"])
    assert all(isinstance(problem, Gap) for problem in check_real_text(result, "cpu"))
    assert all(each["trail"] for each in passes)
    ours = [each for each in passes if each["arm"] == "goodput"]
    assert all(set(each["known"]) == set(KNOWN) for each in ours)
