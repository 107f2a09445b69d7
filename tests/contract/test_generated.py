"""The recorded snapshot and the preset are what the tool generates from the released hosts."""

import json
from pathlib import Path

import pytest

from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.symbols import read_rows
from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import TESTED
from tests.contract.mutant import mutate, replaced
from tests.hosts import REPO, host_source
from tools.write_contract import SNAPSHOT, common_default_config, declarations, generated_files

CONFIG = {"1": {"candidate_steps": [1]}}


@pytest.mark.full  # 20 s; what the snapshot lacks, the next test finds
def test_generating_again_gives_no_difference() -> None:
    for path, text in generated_files().items():
        assert path.read_text() == text, f"{path.relative_to(REPO)}: run `make contract`"


def test_the_snapshot_has_every_symbol_in_every_tested_release() -> None:
    releases, *symbols = json.loads(SNAPSHOT.read_text()).items()
    assert releases == ("releases", list(TESTED))
    assert [path for path, _ in symbols] == sorted(symbol.path for symbol in CONTRACT)
    for path, declared in symbols:
        known = " ".join(declared).split() if isinstance(declared, dict) else TESTED
        assert sorted(known) == sorted(TESTED), path


def test_a_release_that_declares_a_symbol_otherwise_is_told_apart(tmp_path: Path) -> None:
    released = host_source(TESTED[-1])
    module = "sglang.srt.managers.scheduler"
    mutate(released, tmp_path, module, replaced("get_init_info(self)", "get_init_info(self, x=1)"))
    sources = {"1": HostSource(released), "2": HostSource(tmp_path), "3": HostSource(released)}
    changed, kept = read_rows(f"{module}:Scheduler\n  read get_init_info, server_args: show both\n")
    assert declarations(changed, sources) == {
        "1 3": f"function(self) in {module}",
        "2": f"function(self, x=1) in {module}",
    }
    assert declarations(kept, sources) == f"attribute in {module}"


def test_hosts_with_different_defaults_give_no_preset() -> None:
    assert common_default_config({"1": CONFIG, "2": CONFIG}) == CONFIG
    with pytest.raises(SystemExit, match="differs"):
        common_default_config({"1": CONFIG, "2": {"1": {"candidate_steps": [2]}}})
