"""Arms: an earlier commit's is ours, but for its name and where its code lies."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lab.arms import ARMS, earlier, is_earlier, recording
from sglang_adaptive_spec.config.schema import parse_config, preset_path
from tests.hosts import REPO


def test_an_earlier_commit_serves_ours_from_its_own_folder() -> None:
    ours = ARMS["goodput"]
    (arm,) = earlier(ours, f"15bedd4={REPO}")
    assert arm.speculative == ours.speculative
    assert arm.environment == {
        "PYTHONPATH": str(REPO),
        "PYTHONSAFEPATH": "1",
        "XDG_CACHE_HOME": str(REPO / ".cache"),
    }
    assert is_earlier(arm.name)
    assert not is_earlier(ours.name)
    assert earlier(ours, None) == []


def test_a_recording_arm_serves_the_preset_of_ours_and_writes_its_rounds(tmp_path: Path) -> None:
    trace = tmp_path / "rounds.trace"
    arm = recording(ARMS["goodput"], trace)
    preset = parse_config("goodput", preset_path("goodput").read_bytes())
    assert arm.name == "goodput"
    assert parse_config("arm", json.dumps(arm.config).encode()) == replace(
        preset, source="arm", record=str(trace)
    )


@pytest.mark.parametrize("named", ["", "15bedd4", "={folder}", "15bedd4={folder}/absent"])
def test_a_folder_without_the_code_is_refused(named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed: COMMIT=FOLDER"):
        earlier(ARMS["goodput"], named.format(folder=tmp_path))
