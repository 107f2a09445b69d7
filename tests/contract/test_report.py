"""What a user is told: silence inside the window, a warning outside it, a refusal on a mismatch."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sglang_adaptive_spec import __version__, cli
from sglang_adaptive_spec.cli.check import render
from sglang_adaptive_spec.contract.check import contract_report
from sglang_adaptive_spec.contract.table import CONTRACT
from sglang_adaptive_spec.contract.versions import (
    NOT_INSTALLED,
    SUPPORTED,
    TESTED,
    HostInfo,
    installed_host,
    is_supported,
    versions_report,
)
from tests.contract.mutant import mutate, renamed
from tests.hosts import REPO, host_source

VERSION = "0.5.23"
# Enough for the wording; the whole table is checked in test_released_hosts.py.
ARGUMENTS = [symbol for symbol in CONTRACT if symbol.module == "sglang.srt.server_args"]
SIX = {"sglang", "torch", "triton", "flashinfer_python", "sglang-kernel", "sglang-adaptive-spec"}


@pytest.fixture
def changed_host(tmp_path: Path) -> HostInfo:
    """A host without resolve_once."""
    mutate(host_source(VERSION), tmp_path, "sglang.srt.server_args", renamed("resolve_once"))
    return HostInfo("0.5.24", tmp_path)


def _use_host(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    monkeypatch.syspath_prepend(str(root))


@pytest.mark.parametrize(
    ("version", "is_inside"),
    [
        ("0.5.19", False),
        ("0.5.20", True),
        ("0.5.23", True),
        ("0.5.23.post1", True),
        ("0.5.22.dev3+g12ab", True),
        ("0.5.24rc1", False),
        ("0.5.24", False),
        ("not installed", False),
    ],
)
def test_window(version: str, is_inside: bool) -> None:
    assert is_supported(version) is is_inside


def test_the_window_is_the_one_that_the_package_asks_for() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["sglang"] == [f"sglang{SUPPORTED}"]
    assert all(map(is_supported, TESTED))


def test_a_matching_host_inside_the_window_gives_no_message() -> None:
    report = contract_report(HostInfo(VERSION, host_source(VERSION)), ARGUMENTS)
    assert (report.ok, report.in_window, report.message) == (True, True, "")


def test_a_matching_host_outside_the_window_is_used_with_a_warning() -> None:
    report = contract_report(HostInfo("0.5.24", host_source(VERSION)), ARGUMENTS)
    assert report.ok
    assert not report.in_window
    for part in ("0.5.24", SUPPORTED, __version__, "not tested"):
        assert part in report.message


def test_a_refusal_names_symbol_use_and_versions_in_one_sentence(changed_host: HostInfo) -> None:
    report = contract_report(changed_host, ARGUMENTS)
    assert not report.ok
    what = ("ServerArgs.resolve_once", "missing", "0.5.24")
    for part in (*what, SUPPORTED, __version__, "pip install"):
        assert part in report.message
    assert "\n" not in report.message


def test_a_refusal_shows_some_differences_and_counts_the_rest(tmp_path: Path) -> None:
    mutate(host_source(VERSION), tmp_path, "sglang.srt.server_args", renamed("ServerArgs"))
    report = contract_report(HostInfo(VERSION, tmp_path), ARGUMENTS)
    num_hidden = sum(mismatch.symbol not in report.message for mismatch in report.mismatches)
    assert num_hidden > 0
    assert f"and {num_hidden} more" in report.message


def test_no_host_is_a_refusal_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert installed_host() is None
    report = contract_report()
    assert not report.ok
    assert "not installed" in report.message
    assert SUPPORTED in report.message
    assert versions_report()["sglang"] == NOT_INSTALLED


def test_the_host_found_is_the_one_that_an_import_would_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version in ("0.5.20", "0.5.22"):
        root = host_source(version)
        with monkeypatch.context() as context:
            _use_host(context, root)
            assert installed_host() == HostInfo(version, root)
            assert versions_report()["sglang"] == version
            assert "sglang" not in sys.modules


def test_check_prints_six_versions_and_succeeds_on_a_supported_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use_host(monkeypatch, host_source(VERSION))
    assert cli.main(["check", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["versions"].keys() == SIX
    assert result["versions"]["sglang-adaptive-spec"] == __version__
    assert (result["ok"], result["in_window"], result["mismatches"]) == (True, True, [])
    assert (result["host_version"], result["supported"]) == (VERSION, SUPPORTED)
    text = render(result)
    for part in (*SIX, "ok", "inside", SUPPORTED):
        assert part in text


def test_check_fails_and_lists_every_difference_on_a_changed_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed_host: HostInfo
) -> None:
    _use_host(monkeypatch, changed_host.root)
    assert cli.main(["check"]) == 1
    text = capsys.readouterr().out
    for part in ("FAILED", "ServerArgs.resolve_once", "missing", "expected", "used to"):
        assert part in text


def test_the_module_runs_as_a_program_and_wants_a_verb() -> None:
    command = [sys.executable, "-m", "sglang_adaptive_spec"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 2
    assert "check" in done.stderr
