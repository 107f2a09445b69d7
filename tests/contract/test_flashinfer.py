"""FlashInfer's private parts: known versions have them, any change leaves plans to SGLang."""

import re
import shutil
from email.parser import Parser
from pathlib import Path

import pytest

from sglang_adaptive_spec import cli
from sglang_adaptive_spec.contract.flashinfer import (
    PARTS,
    PLAN,
    WIDTH,
    host_plans_reason,
)
from sglang_adaptive_spec.contract.symbols import Kind
from sglang_adaptive_spec.contract.versions import (
    FLASHINFER_SUPPORTED,
    FLASHINFER_TESTED,
    TESTED,
    HostInfo,
    installed_flashinfer,
    is_supported,
)
from tests.fake_flashinfer import change, fake_flashinfer
from tests.hosts import flashinfer_source, host_source

ONE_MORE = "int64_t uniform_q_len = 0, bool is_packed = false)"
CHANGES = {
    "a plan takes one argument more": (
        "data/csrc/batch_prefill.cu",
        "int64_t uniform_q_len = 0)",
        ONE_MORE,
        f"{WIDTH}, is_packed)",
    ),
    "the last two arguments change places": (
        "data/csrc/batch_prefill.cu",
        "num_colocated_ctas = 0, int64_t uniform_q_len = 0",
        "uniform_q_len = 0, int64_t num_colocated_ctas = 0",
        f"{WIDTH}, num_colocated_ctas)",
    ),
    "the plan is another function": (
        "data/csrc/batch_prefill.cu",
        "BatchPrefillWithKVCachePlan",
        "BatchPrefillPlan",
        "missing",
    ),
    "a mask is packed otherwise": (
        "data/csrc/quantization.cu",
        "TensorView input_indptr, TensorView output_indptr",
        "TensorView output_indptr, TensorView input_indptr",
        "(x, output_indptr, input_indptr",
    ),
    "a wrapper keeps its module elsewhere": (
        "prefill.py",
        "_cached_module",
        "_module",
        "BatchPrefillWithPagedKVCacheWrapper._cached_module",
    ),
    "a wrapper plans in other words": (
        "prefill.py",
        "custom_mask=None",
        "mask=None",
        "BatchPrefillWithPagedKVCacheWrapper.plan",
    ),
    "a decode's buffers have other names": (
        "decode.py",
        "_pin_memory_int_workspace_buffer",
        "_pinned",
        "BatchDecodeWithPagedKVCacheWrapper._pin_memory_int_workspace_buffer",
    ),
}


@pytest.mark.parametrize("version", TESTED)
def test_the_window_reaches_over_what_every_tested_host_pins(version: str) -> None:
    (info,) = host_source(version).glob("sglang-*.dist-info/METADATA")
    required = Parser().parsestr(info.read_text()).get_all("Requires-Dist") or []
    (pin,) = (each for each in required if re.match(r"flashinfer[_-]python\b", each))
    pinned = pin.partition("==")[2].split(";")[0].strip()
    assert pinned in FLASHINFER_TESTED
    assert is_supported(pinned, FLASHINFER_SUPPORTED)


@pytest.mark.parametrize(
    ("version", "is_inside"),
    [
        ("0.6.17", False),
        ("0.6.18", True),
        ("0.7.0", True),
        ("0.7.2", True),
        ("0.7.2.post1", True),
        ("0.7.3", False),
        ("0.8.0rc1", False),
        ("not installed", False),
    ],
)
def test_outside_the_window_the_hosts_own_plans_serve(
    tmp_path: Path, version: str, is_inside: bool
) -> None:
    reason = host_plans_reason(fake_flashinfer(tmp_path, version))
    if is_inside:
        assert reason is None
    else:
        assert f"flashinfer {version} is not tested" in str(reason)
        assert all(known in str(reason) for known in FLASHINFER_TESTED)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_private_part_is_named_with_the_versions_that_are_known(
    tmp_path: Path, name: str
) -> None:
    flashinfer = fake_flashinfer(tmp_path)
    assert host_plans_reason(flashinfer) is None
    file, old, new, named = CHANGES[name]
    change(flashinfer, file, old, new)
    reason = host_plans_reason(flashinfer)
    for part in (named, "flashinfer 0.7.2", "expected", "used to", *FLASHINFER_TESTED):
        assert part in str(reason), part
    assert "\n" not in str(reason)


def test_every_row_says_what_it_is_for_and_functions_have_signatures() -> None:
    for symbol in PARTS:
        assert symbol.why
        assert bool(symbol.signatures) == (symbol.kind is Kind.CALL), symbol.path


def test_the_version_found_is_that_of_the_source_that_an_import_would_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_flashinfer() is None, "the CPU host has none"
    assert host_plans_reason() is None
    flashinfer = fake_flashinfer(tmp_path, "0.7.9")
    assert installed_flashinfer() == flashinfer
    assert "0.7.9 is not tested" in str(host_plans_reason())


def test_check_says_whose_plans_serve_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_flashinfer(tmp_path, "0.7.9")
    assert cli.main(["check"]) == 0
    text = capsys.readouterr().out
    assert "FlashInfer's plans are left to SGLang: flashinfer 0.7.9 is not tested" in text
    fake_flashinfer(tmp_path, "0.7.2")
    assert cli.main(["check"]) == 0
    assert "left to SGLang" not in capsys.readouterr().out


# -- on the released wheels, 150 MB --


@pytest.mark.full
@pytest.mark.parametrize("version", FLASHINFER_TESTED)
def test_every_version_that_a_tested_host_pins_has_every_part(version: str) -> None:
    assert host_plans_reason(HostInfo(version, flashinfer_source(version))) is None


@pytest.mark.full
@pytest.mark.parametrize("version", FLASHINFER_TESTED)
def test_the_fake_declares_a_plan_as_the_released_ones_do(version: str, tmp_path: Path) -> None:
    def plan(root: Path) -> str:
        text = (root / PLAN.module).read_text()
        return " ".join(text[text.index(PLAN.name) :].partition("{")[0].split())

    assert plan(fake_flashinfer(tmp_path).root) == plan(flashinfer_source(version))


@pytest.mark.full
@pytest.mark.parametrize("version", FLASHINFER_TESTED)
def test_the_first_plan_of_a_verify_passes_as_many_arguments(version: str) -> None:
    """It is FlashInfer's own; the later ones are the host's fast_prefill_plan."""
    text = (flashinfer_source(version) / "flashinfer" / "prefill.py").read_text()
    wrapper = text[text.index("class BatchPrefillWithPagedKVCacheWrapper") :]
    listed, _, appended = wrapper.partition("            args = [\n")[2].partition(
        "            ]\n"
    )
    added = appended.partition("self._cached_module.plan(")[0].count("args.append(")
    assert len(listed.splitlines()) + added == len(PLAN.parameters)


@pytest.mark.full
@pytest.mark.parametrize("version", FLASHINFER_TESTED)
def test_a_change_planted_in_a_released_one_is_found(version: str, tmp_path: Path) -> None:
    released, package = flashinfer_source(version) / "flashinfer", tmp_path / "flashinfer"
    (package / "data" / "csrc").mkdir(parents=True)
    for entry in released.iterdir():
        if entry.name != "data":
            (package / entry.name).symlink_to(entry)
    for file in {symbol.module for symbol in PARTS if "/" in symbol.module}:
        shutil.copy(flashinfer_source(version) / file, tmp_path / file)
    flashinfer = HostInfo(version, tmp_path)
    assert host_plans_reason(flashinfer) is None
    file, old, new, named = CHANGES["a plan takes one argument more"]
    change(flashinfer, file, old, new)
    assert named in str(host_plans_reason(flashinfer))
