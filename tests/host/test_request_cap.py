"""Without a number from the user, as many requests run as graphs and FlashInfer's plans hold.

The host resolves for a GPU that is not there: only its memory is pretended.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import write_model

H200_MB = 143771.0
HOSTS_CAP = 48  # sglang 0.5.21 arg_groups/speculative_hook.py

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.arg_groups import memory_hook

    monkeypatch.setattr(memory_hook, "get_device_memory_capacity", lambda _device: H200_MB)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Targets with the heads of Llama 3.1 8B and 70B: config only."""
    root = tmp_path_factory.mktemp("targets")
    heads = {"num_key_value_heads": 8, "head_dim": 128}
    return {
        "8b": write_model(root / "8b", num_attention_heads=32, **heads),
        "70b": write_model(root / "70b", num_attention_heads=64, **heads),
    }


def resolved(model_path: str, draft: str, **changes: Any) -> Any:
    """Returns the arguments as the host resolved them."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.server_args import ServerArgs

    fields: dict[str, Any] = {
        "model_path": model_path,
        "device": "cuda",
        "attention_backend": "flashinfer",
        "speculative_algorithm": "ADAPTIVE_EAGLE",
        "speculative_draft_model_path": draft,
    }
    server_args = ServerArgs(**{**fields, **changes})
    server_args.resolve_once()
    return resolved_view(server_args)


def test_flashinfers_workspace_holds_the_plans_of_so_many(
    target: dict[str, str], models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """128 of 8B heads were captured and served on an H200, a catch-up of 16 rounds was not."""
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert resolved(target["8b"], models["eagle3"]).max_running_requests == 128
    for said in ("128", str(HOSTS_CAP), "--max-running-requests"):
        assert said in caplog.text


def test_twice_the_heads_leave_it_at_the_hosts_cap_and_two_ranks_do_not(
    target: dict[str, str], models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert resolved(target["70b"], models["eagle3"]).max_running_requests == HOSTS_CAP
    assert f"up to {HOSTS_CAP} running requests, SGLang's cap" in caplog.text
    assert resolved(target["70b"], models["eagle3"], tp_size=2).max_running_requests > HOSTS_CAP


def test_a_larger_workspace_holds_more(
    target: dict[str, str], models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_FLASHINFER_WORKSPACE_SIZE", str(2**30))
    view = resolved(target["8b"], models["eagle3"])
    assert view.max_running_requests == view.cuda_graph_config.decode.max_bs == 256


def test_without_such_a_workspace_the_graphs_are_the_limit(
    target: dict[str, str], models: dict[str, str]
) -> None:
    view = resolved(target["70b"], models["eagle3"], attention_backend="triton")
    assert view.max_running_requests == 256
    fewer = {"attention_backend": "triton", "cuda_graph_max_bs_decode": 100}
    assert resolved(target["70b"], models["eagle3"], **fewer).max_running_requests == 100
    fewer["cuda_graph_max_bs_decode"] = 16
    assert resolved(target["70b"], models["eagle3"], **fewer).max_running_requests == HOSTS_CAP


def test_a_slot_with_wide_tiers_ends_the_list(
    target: dict[str, str], models: dict[str, str], tmp_path: Path
) -> None:
    """All batch sizes up to the cap are captured: one that does not fit is never jumped over."""
    config = tmp_path / "adaptive_spec.json"
    wide = {"112": {"candidate_steps": [0, 24]}, "120": {"candidate_steps": [0, 1]}}
    document = {"policy": "goodput", "1": {"candidate_steps": [0, 1]}, **wide}
    config.write_text(json.dumps(document))
    view = resolved(target["8b"], models["eagle3"], speculative_adaptive_config=str(config))
    assert view.max_running_requests == 104


@pytest.mark.parametrize(
    "changes",
    [
        {"max_running_requests": 8},
        {"speculative_algorithm": "EAGLE3"},  # not ours
        {"disable_cuda_graph": True},
        {"enable_lora": True, "lora_paths": ["a=b"]},  # static: its depth stays
    ],
)
def test_elsewhere_the_number_is_the_hosts_or_the_users(
    target: dict[str, str], models: dict[str, str], changes: dict[str, Any]
) -> None:
    view = resolved(target["8b"], models["eagle3"], **changes)
    assert view.max_running_requests == changes.get("max_running_requests", HOSTS_CAP)


def test_what_a_model_sets_stays(
    target: dict[str, str], models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.arg_groups import memory_hook
    from sglang.srt.arg_groups.overrides import declare_resolution

    host_step = memory_hook.handle_gpu_memory_settings

    def handle_gpu_memory_settings(server_args: Any) -> None:
        host_step(server_args)
        declare_resolution(server_args, "a model's own override", max_running_requests=72)

    monkeypatch.setattr(memory_hook, "handle_gpu_memory_settings", handle_gpu_memory_settings)
    assert resolved(target["8b"], models["eagle3"]).max_running_requests == 72
