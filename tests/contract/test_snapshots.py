"""The recorded snapshots and the preset are what the tool generates from the released hosts."""

import json

import pytest

from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO
from tools.write_contract import SNAPSHOTS, common_default_config, generated_files


def test_generating_again_gives_no_difference() -> None:
    for path, text in generated_files().items():
        assert path.read_text() == text, f"{path.relative_to(REPO)}: run `make contract`"


def test_there_is_one_snapshot_per_tested_release_with_every_symbol() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.json")} == set(TESTED)
    for version in TESTED:
        snapshot = json.loads((SNAPSHOTS / f"{version}.json").read_text())
        assert snapshot["version"] == version
        assert snapshot["symbols"].keys() == {symbol.path for symbol in CONTRACT}


def test_hosts_with_different_defaults_give_no_preset() -> None:
    one = {"version": "1", "default_adaptive_config": {"1": {"candidate_steps": [1]}}}
    other = {"version": "2", "default_adaptive_config": {"1": {"candidate_steps": [2]}}}
    assert common_default_config([one, one]) == {"1": {"candidate_steps": [1]}}
    with pytest.raises(SystemExit, match="differs"):
        common_default_config([one, other])
