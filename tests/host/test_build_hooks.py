"""What is hooked while tiers are built: what the attention backends of a server take, no more."""

from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.contract.table import HOOK_TARGETS

INIT = "init_cuda_graph_state"
EVERYWHERE = ["EAGLEDraftExtendCudaGraphRunner.capture_one_shape", "plans"]
FA3 = [
    "FlashAttentionBackend._apply_cuda_graph_metadata",
    f"FlashAttentionBackend.{INIT}",
    "FlashAttentionBackend.init_forward_metadata",
]
TRITON = [
    f"TritonAttnBackend.{INIT}",
    "TritonAttnBackend.init_forward_metadata",
    f"TritonMultiStepDraftBackend.{INIT}",
]
FLASHINFER = [f"FlashInferAttnBackend.{INIT}", f"FlashInferMultiStepDraftBackend.{INIT}"]
MLA = [f"FlashInferMLAAttnBackend.{INIT}", f"FlashInferMLAMultiStepDraftBackend.{INIT}"]


@pytest.mark.parametrize(
    ("backends", "is_mla", "targets"),
    [
        ({"fa3"}, False, FA3),
        ({"flashinfer"}, False, FLASHINFER),
        ({"flashinfer"}, True, MLA),
        ({"flashinfer", "triton"}, False, FLASHINFER + TRITON),
        ({"triton", "fa3"}, True, FA3 + TRITON),
        ({"torch_native"}, False, []),
    ],
)
def test_the_backends_of_a_server_are_hooked_and_no_others(
    plugins_loaded: None,
    monkeypatch: pytest.MonkeyPatch,
    backends: set[str],
    is_mla: bool,
    targets: list[str],
) -> None:
    from sglang_adaptive_spec.host.attention.kv_index import SharedIndex
    from sglang_adaptive_spec.host.startup import build_hooks

    asked: list[str] = []
    is_planned: list[bool] = []

    def plan_hooks(is_in_use: bool) -> dict[str, Any]:
        is_planned.append(is_in_use)
        return {"plans": None}

    for name, stand_in in {
        "resolved_view": lambda server_args: server_args,
        "attention_backends": lambda _view: backends,
        "use_mla_backend": lambda _server_args: is_mla,
        "is_flashinfer_available": lambda: True,
        "plan_hooks": plan_hooks,
        "hook_now": lambda hooks, *_kind: asked.extend(hooks),
    }.items():
        monkeypatch.setattr(build_hooks, name, stand_in)
    server_args: Any = SimpleNamespace()
    build_hooks.install_gpu_hooks(server_args, SharedIndex())
    assert sorted(asked) == sorted(EVERYWHERE + targets)
    assert is_planned == ["flashinfer" in backends and not is_mla]
    hooked = (each for each in asked if each != "plans")
    assert all(callable(resolve_name(HOOK_TARGETS[each])) for each in hooked)
