"""Real text on the CPU host: every arm answers the same requests, and texts are compared."""

from pathlib import Path

import pytest

from benchmarks.stats.differences import Gap
from benchmarks.studies.real_text.__main__ import KNOWN
from benchmarks.studies.real_text.summary import (
    DOMAINS,
    TABLE_TRAFFIC,
    build_result,
    check_real_text,
)
from tests.lab.dry_run import dry_run, write_prompts

pytestmark = pytest.mark.e2e


def test_closed_loops_of_real_servers(tmp_path: Path) -> None:
    arguments = ["run", *write_prompts(tmp_path, DOMAINS), "--traffic", "json,mixed"]
    arguments += ["--arms", "none,static-3,goodput", "--concurrency", "2", "--new-tokens", "64"]
    arguments += ["--repeats", "1", "--max-total-tokens", "8192"]
    record = dry_run(tmp_path, "real_text", *arguments)
    passes = record["passes"]
    assert len(passes) == 6
    assert all(set(each["as_none"]) == {"1"} for each in passes)  # float32 on a CPU
    result = build_result(record["provenance"], passes, record["servers"])
    assert all(isinstance(problem, Gap) for problem in check_real_text(result, "cpu"))
    drafted = [each for each in passes if each["arm"] == "static-3"]
    assert all(set(each["rounds"]) == {"3"} for each in drafted)


def test_a_table_drafts_beside_no_speculation(tmp_path: Path) -> None:
    arguments = ["run", *write_prompts(tmp_path, TABLE_TRAFFIC), "--traffic", "edits"]
    arguments += ["--arms", "none,static-ngram-3,goodput-ngram", "--concurrency", "2"]
    arguments += ["--new-tokens", "64", "--repeats", "1", "--max-total-tokens", "8192", "--trail"]
    record = dry_run(tmp_path, "real_text", *arguments)
    assert [each["arm"] for each in record["passes"]] == ["static-ngram-3", "goodput-ngram", "none"]
    assert all(set(each["as_none"]) == {"1"} for each in record["passes"])
    ours, static = record["passes"][1], record["passes"][0]
    assert set(static["rounds"]) == {"3"}
    assert set(ours["rounds"]) <= {"0", "1", "3", "7", "15"}
    assert all(each["trail"] for each in record["passes"])
    assert set(ours["known"]) == set(KNOWN)
