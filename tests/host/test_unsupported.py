"""Each setting that rules out switching is a reason alone; which backends draft no trees."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.contract.versions import TESTED
from tests.host.conftest import QSA
from tests.hosts import REPO, host_source

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.mark.parametrize("backend", ["flashinfer", "flashmla", "trtllm_mla"])
@pytest.mark.parametrize("flag", ["attention_backend", "speculative_draft_attention_backend"])
def test_which_backends_draft_chains_only_depends_on_mla(
    monkeypatch: pytest.MonkeyPatch, flag: str, backend: str
) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    view = SimpleNamespace(**dict.fromkeys(unsupported.ATTENTION_FLAGS))
    setattr(view, flag, backend)
    monkeypatch.setattr(unsupported, "resolved_view", lambda server_args: view)
    for is_mla in (False, True):
        monkeypatch.setattr(unsupported, "use_mla_backend", lambda server_args, it=is_mla: it)
        refusal = unsupported.tree_refusal(None)
        assert (f"{backend} drafts chains only on MLA" in str(refusal)) is is_mla
    setattr(view, flag, "triton")
    assert unsupported.tree_refusal(None) is None


SETTINGS = {
    "device": ("cuda", "npu", "device npu tiers were never switched"),
    "pp_size": (1, 2, "pp_size=2"),
    "disaggregation_mode": ("null", "prefill", "a PD prefill node .* decodes nothing"),
    "enable_pdmux": (False, True, "PD multiplexing"),
    "enable_hisparse": (False, True, "HiSparse"),
    "elastic_ep_backend": (None, "mooncake", "elastic expert parallelism"),
    "enable_deterministic_inference": (False, True, "deterministic"),
    "enable_two_batch_overlap": (False, True, "two-batch"),
}
LORA_OFF = {"enable_lora": False, "lora_paths": None, "lora_backend": "csgmv"}
HARMLESS = LORA_OFF | {setting: values[0] for setting, values in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_that_rules_out_switching_is_a_reason_alone(name: str) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    assert unsupported._reason(HARMLESS.__getitem__) is None
    _, harmful, words = SETTINGS[name]
    assert re.search(words, str(unsupported._reason({**HARMLESS, name: harmful}.__getitem__)))


@pytest.mark.parametrize("device", ["npu", "xpu", "musa", "hpu"])
def test_a_device_on_which_nothing_was_run_is_served_static(device: str) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    reason = unsupported._reason({**HARMLESS, "device": device}.__getitem__)
    assert reason == f"on device {device} tiers were never switched, only on cuda and cpu"
    for known in ("cuda", "cpu", None):  # None: the host finds it out while it resolves
        assert unsupported._reason({**HARMLESS, "device": known}.__getitem__) is None


@pytest.mark.parametrize("asked", [{"enable_lora": True}, {"lora_paths": ["a=b"]}])
@pytest.mark.parametrize("backend", ["csgmv", "triton", "torch_native", "triton_v2", "ascend"])
def test_lora_is_static_on_backends_whose_graphs_keep_something_else(
    asked: dict[str, object], backend: str
) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    reason = unsupported._reason({**HARMLESS, **asked, "lora_backend": backend}.__getitem__)
    is_static = backend in ("triton_v2", "ascend")
    expected = f"LoRA on --lora-backend {backend} was never run adaptive"
    assert reason == (expected if is_static else None)


@pytest.mark.parametrize("has_trees", [False, True])
def test_a_decode_node_is_static_with_trees_alone(has_trees: bool) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    server_args: Any = SimpleNamespace(
        **{**HARMLESS, "disaggregation_mode": "decode"}, speculative_eagle_topk=None
    )
    reason = unsupported.raw_reason(server_args, is_listed=False, has_trees=has_trees)
    assert ("a request begins with what the prefill node proposes" in str(reason)) is has_trees
    assert (reason is None) is not has_trees


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("fields", [{"index_topk": 2048}, QSA], ids=["DSA", "QSA"])
def test_of_shared_sparse_indices_only_those_of_qsa_are_as_wide_as_a_tier(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, int], is_nested: bool
) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    def reason(is_shared: bool) -> str:
        made = SimpleNamespace(**fields, index_share_for_mtp_iteration=is_shared)
        config = SimpleNamespace(text_config=made) if is_nested else made
        monkeypatch.setattr(unsupported, "draft_config", lambda server_args: config)
        return str(unsupported._index_share_reason(None))

    assert ("QSA's sparse indices" in reason(is_shared=True)) is (fields is QSA)
    assert reason(is_shared=False) == "None"


ASK_ABOUT_ATTENTION_DP = """
from types import SimpleNamespace
from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason
from sglang_adaptive_spec.host.launch.unsupported import _WithoutOurs
for is_on, size in ((True, 2), (False, 1)):
    view = SimpleNamespace(
        speculative_algorithm="EAGLE", speculative_eagle_topk=1, enable_multi_layer_eagle=False,
        enable_two_batch_overlap=False, enable_pdmux=False, ep_join_mode=None,
        enable_dp_attention=is_on, attn_dp_size=size,
    )
    print(is_on, adaptive_unsupported_reason(view))
    print("ours", adaptive_unsupported_reason(_WithoutOurs(view)))
"""


@pytest.mark.full  # imports a host anew
@pytest.mark.parametrize("version", TESTED)
def test_attention_dp_is_a_limit_of_every_tested_host_and_none_of_ours(version: str) -> None:
    """Up to 0.5.21 the host reads `enable_dp_attention`, from 0.5.22 on `attn_dp_size`."""
    path = os.pathsep.join([str(host_source(version)), str(REPO)])
    done = subprocess.run(
        [sys.executable, "-c", ASK_ABOUT_ATTENTION_DP],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert re.search("^True .*not supported", done.stdout, re.MULTILINE), done.stderr
    assert re.findall("^(False|ours) (.*)$", done.stdout, re.MULTILINE) == [
        ("ours", "None"),
        ("False", "None"),
        ("ours", "None"),
    ]


def test_beside_trees_and_attention_dp_the_hosts_other_reasons_still_count() -> None:
    from sglang_adaptive_spec.host.launch.unsupported import (
        _WithoutOurs,
        adaptive_unsupported_reason,
    )

    harmless = {
        **dict.fromkeys(("enable_multi_layer_eagle", "enable_two_batch_overlap"), False),
        "enable_pdmux": False,
        "enable_dp_attention": True,
        "attn_dp_size": 2,
        "ep_join_mode": None,
        "speculative_algorithm": "EAGLE",
        "speculative_eagle_topk": 4,
    }
    assert adaptive_unsupported_reason(_WithoutOurs(SimpleNamespace(**harmless))) is None
    for harmful, words in (
        ({"enable_multi_layer_eagle": True}, "enable_multi_layer_eagle"),
        ({"enable_two_batch_overlap": True}, "enable_two_batch_overlap"),
    ):
        view = SimpleNamespace(**{**harmless, **harmful})
        assert re.search(words, str(adaptive_unsupported_reason(_WithoutOurs(view))))
