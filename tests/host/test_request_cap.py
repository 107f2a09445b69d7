"""Without a number from the user, more requests run at once than SGLang lets EAGLE have.

The host resolves for a GPU that is not there: only its memory is pretended.
"""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.config import parse_config
from sglang_adaptive_spec.host.indices import GraphIndex
from sglang_adaptive_spec.host.request import request_of
from sglang_adaptive_spec.policy.tiers import CATCH_UP_ROUNDS
from tests.host.conftest import write_model

H200_MB = 143771.0
HOSTS_CAP = 48  # sglang 0.5.21 arg_groups/speculative_hook.py
MOST = 2048  # where the host has graphs up to 256 and the tiers keep their memory

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

    return resolved_view(arguments(model_path, draft, **changes))


def arguments(model_path: str, draft: str, **changes: Any) -> Any:
    """Returns the record that the host has resolved."""
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
    return server_args


def test_zero_steps_alone_serve_more_than_have_decode_graphs(
    target: dict[str, str], models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view = resolved(target["8b"], models["eagle3"])
    assert view.cuda_graph_config.decode.max_bs == 256
    assert view.max_running_requests == MOST
    for said in (f"up to {MOST} ", f"SGLang's {HOSTS_CAP}", "--max-running-requests"):
        assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "is_raised"),
    [
        ({}, True),
        ({"max_running_requests": MOST}, False),
        ({"cuda_graph_max_bs_decode": 16}, False),
        ({"speculative_num_steps": 3}, True),  # what names the tier to start at loses nothing
    ],
)
def test_every_process_knows_whose_number_it_is(
    target: dict[str, str], models: dict[str, str], changes: dict[str, Any], is_raised: bool
) -> None:
    """Start-up may take back ours (startup.py:lower_cap)."""
    server_args = arguments(target["8b"], models["eagle3"], **changes)
    request = pickle.loads(pickle.dumps(request_of(server_args)))
    assert request.is_cap_raised == is_raised
    assert request == request_of(server_args)


def test_twice_the_heads_halve_it_and_two_ranks_do_not(
    target: dict[str, str], models: dict[str, str]
) -> None:
    assert resolved(target["70b"], models["eagle3"]).max_running_requests == 128
    assert resolved(target["70b"], models["eagle3"], tp_size=2).max_running_requests == MOST


def test_the_drafts_heads_count_as_well(target: dict[str, str], tmp_path: Path) -> None:
    """Its draft-extend and the catch-ups plan with them."""
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    draft = write_model(tmp_path / "draft", architectures=["LlamaForCausalLMEagle3"], **heads)
    assert resolved(target["8b"], draft).max_running_requests == 128


def test_a_workspace_that_the_user_sets_is_the_limit(
    target: dict[str, str],
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SGLANG_FLASHINFER_WORKSPACE_SIZE", str(384 * 2**20))
    assert resolved(target["8b"], models["eagle3"]).max_running_requests == 128
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert resolved(target["70b"], models["eagle3"]).max_running_requests == HOSTS_CAP
    assert f"up to {HOSTS_CAP} running requests, SGLang's cap" in caplog.text
    assert "SGLANG_FLASHINFER_WORKSPACE_SIZE" in caplog.text


def test_without_such_a_workspace_the_graphs_are_the_limit(
    target: dict[str, str], models: dict[str, str]
) -> None:
    on_fa3: dict[str, Any] = {"attention_backend": "fa3"}
    for largest, cap in ((None, MOST), (512, MOST), (100, 100), (16, HOSTS_CAP)):
        view = resolved(target["70b"], models["eagle3"], cuda_graph_max_bs_decode=largest, **on_fa3)
        assert view.max_running_requests == cap


@pytest.mark.parametrize(
    ("name", "tp_size", "cap"), [("8b", 1, 256), ("8b", 2, MOST), ("70b", 4, MOST), ("70b", 2, 256)]
)
def test_larger_graphs_must_fit_before_more_requests_run_than_they_hold(
    target: dict[str, str], models: dict[str, str], name: str, tp_size: int, cap: int
) -> None:
    """Else catch-ups would get narrow: a draft-extend in every round of no speculation."""
    view = resolved(target[name], models["eagle3"], cuda_graph_max_bs_decode=512, tp_size=tp_size)
    assert view.max_running_requests == cap


@pytest.mark.parametrize(
    ("context_length", "backend", "cap"),
    [
        (8192, "flashinfer", MOST),
        (40960, "flashinfer", 136),
        (131072, "flashinfer", HOSTS_CAP),
        (40960, "triton", 52),  # its entries are 8 bytes long, and it keeps partial results
        (40960, "fa3", 120),
        (131072, "fa3", HOSTS_CAP),
    ],
)
def test_a_long_context_leaves_the_tiers_their_memory(
    tmp_path: Path, context_length: int, backend: str, cap: int
) -> None:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    long: dict[str, Any] = {**heads, "max_position_embeddings": context_length}
    model = write_model(tmp_path / "target", **long)
    draft = write_model(tmp_path / "draft", architectures=["LlamaForCausalLMEagle3"], **long)
    view = resolved(model, draft, attention_backend=backend)
    assert view.max_running_requests == cap


def test_memory_granted_to_the_tiers_is_granted_to_their_indices(
    models: dict[str, str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "target", max_position_embeddings=131072)
    config = tmp_path / "adaptive_spec.json"
    slot = {"candidate_steps": [0, 1, 2, 3, 5, 7]}
    config.write_text(json.dumps({"policy": "goodput", "memory_budget_gb": 32, "1": slot}))
    view = resolved(model, models["eagle3"], speculative_adaptive_config=str(config))
    assert view.max_running_requests == 256


@pytest.mark.parametrize(
    ("slots", "cap"),
    [
        ({"1": [0, 1, 3]}, 256),
        ({"1": [0, 1, 3], "300": [0]}, 256),  # 257 to 299 would draft without graphs
        ({"1": [0, 1, 3], "257": [0], "600": [0, 1]}, 256),
        ({"1": [0, 1, 3], "200": [0]}, MOST),
        ({"1": [0]}, MOST),
    ],
)
def test_more_than_graphs_hold_run_where_the_config_has_them_at_zero_steps_alone(
    target: dict[str, str],
    models: dict[str, str],
    tmp_path: Path,
    slots: dict[str, list[int]],
    cap: int,
) -> None:
    config = tmp_path / "adaptive_spec.json"
    named = {bound: {"candidate_steps": steps} for bound, steps in slots.items()}
    config.write_text(json.dumps({"policy": "goodput", **named}))
    view = resolved(target["8b"], models["eagle3"], speculative_adaptive_config=str(config))
    assert view.max_running_requests == cap


def test_where_every_request_keeps_a_row_of_vocabulary_graphs_set_the_limit(
    target: dict[str, str], models: dict[str, str]
) -> None:
    view = resolved(target["8b"], models["eagle3"], speculative_use_rejection_sampling=True)
    assert view.max_running_requests == 256


def test_an_index_counts_for_the_largest_batch_that_may_choose_its_tier(
    plugins_loaded: None,
) -> None:
    from sglang_adaptive_spec.host.request_cap import index_gb

    index = GraphIndex(["flashinfer"], 1000, 1, CATCH_UP_ROUNDS, 0)
    slots = {"1": {"candidate_steps": [0, 1]}, "9": {"candidate_steps": [0]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    plain, one = 1 + 15, 2 + 2  # verify and draft-extend, in tokens
    for size, entries in (
        (4, 4 * (plain + one)),
        (8, 8 * (plain + one)),
        (16, 16 * plain + 8 * one),
    ):
        assert index_gb(config, index, size) == entries * 1000 * 5 / 2**30


def test_a_deep_tier_counts_at_every_batch_size(
    target: dict[str, str], models: dict[str, str], tmp_path: Path
) -> None:
    """Batches pad up: it may be captured above the slot that names it."""
    config = tmp_path / "adaptive_spec.json"
    slots = {"1": {"candidate_steps": [0, 1, 3, 40]}, "100": {"candidate_steps": [0, 1]}}
    config.write_text(json.dumps({"policy": "goodput", **slots}))
    view = resolved(target["8b"], models["eagle3"], speculative_adaptive_config=str(config))
    assert HOSTS_CAP < view.max_running_requests < 256


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"disable_cuda_graph": True}, "no decode graphs"),
        ({"device": "cpu", "attention_backend": "intel_amx"}, "attention backend intel_amx"),
        ({"attention_backend": "torch_native"}, "attention backend torch_native"),
    ],
)
def test_it_stays_where_more_was_not_measured(
    target: dict[str, str],
    models: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    why: str,
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert resolved(target["8b"], models["eagle3"], **changes).max_running_requests == HOSTS_CAP
    assert why in caplog.text


def test_it_stays_with_trees(
    target: dict[str, str],
    models: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = tmp_path / "adaptive_spec.json"
    slot = {"candidate_steps": [0, 1], "candidate_tiers": [[2, 4, 7]]}
    config.write_text(json.dumps({"policy": "goodput", "1": slot}))
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view = resolved(target["8b"], models["eagle3"], speculative_adaptive_config=str(config))
    assert view.max_running_requests == HOSTS_CAP
    assert "trees" in caplog.text


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("use_mla_backend", True),
        ("mambaish_config", object()),
    ],
)
def test_it_stays_for_other_kinds_of_attention(
    target: dict[str, str],
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    found: object,
) -> None:
    monkeypatch.setattr(f"sglang_adaptive_spec.host.request_cap.{name}", lambda _model: found)
    assert resolved(target["8b"], models["eagle3"]).max_running_requests == HOSTS_CAP


@pytest.mark.parametrize(
    ("draft", "changes"),
    [
        ("eagle3", {"max_running_requests": 8}),
        ("eagle3", {"speculative_algorithm": "EAGLE3"}),  # not ours
        ("eagle3", {"enable_lora": True, "lora_paths": ["a=b"]}),  # static by its flags
        ("index_share", {}),  # static by what was resolved
    ],
)
def test_elsewhere_the_number_is_the_hosts_or_the_users_and_nothing_is_said(
    target: dict[str, str],
    models: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    draft: str,
    changes: dict[str, Any],
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view = resolved(target["8b"], models[draft], **changes)
    assert view.max_running_requests == changes.get("max_running_requests", HOSTS_CAP)
    assert "ADAPTIVE_EAGLE serves up to" not in caplog.text


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
