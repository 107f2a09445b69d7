"""Without a number from the user, more requests run at once than SGLang lets EAGLE have.

The host resolves for a GPU that is not there: only its memory is pretended.
"""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import parse_config
from sglang_adaptive_spec.host.attention.kv_index_size import IndexShape
from sglang_adaptive_spec.host.launch.options import options_of
from sglang_adaptive_spec.host.sizes import OF_A_DRAFT, OF_A_TABLE
from tests.host.conftest import write_model

H200_MB = 143771.0
HOSTS_CAP = 48  # sglang 0.5.21 arg_groups/speculative_hook.py
AS_WITHOUT_SPECULATION = None  # the host then counts by its KV slots

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.arg_groups import memory_hook

    monkeypatch.setattr(memory_hook, "get_device_memory_capacity", lambda _device: H200_MB)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Targets with the heads of Llama 3.1 8B, 70B and 405B: config only."""
    root = tmp_path_factory.mktemp("targets")
    heads = {"num_key_value_heads": 8, "head_dim": 128, "hidden_size": 128}
    return {
        "8b": write_model(root / "8b", num_attention_heads=32, **heads),
        "70b": write_model(root / "70b", num_attention_heads=64, **heads),
        "405b": write_model(root / "405b", num_attention_heads=128, **heads),
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


def config_file(folder: Path, slots: dict[str, Any], **fields: Any) -> str:
    """Writes a config of these candidate steps; a slot may be given whole, too."""
    path = folder / "adaptive_spec.json"
    named = {
        bound: slot if isinstance(slot, dict) else {"candidate_steps": slot}
        for bound, slot in slots.items()
    }
    path.write_text(json.dumps({"policy": "goodput", **fields, **named}))
    return str(path)


def test_where_zero_steps_serve_large_batches_the_cap_is_that_of_no_speculation(
    target: dict[str, str], models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view = resolved(target["8b"], models["eagle3"])
    assert view.cuda_graph_config.decode.max_bs == 256
    assert view.max_running_requests is AS_WITHOUT_SPECULATION
    without = resolved(target["8b"], models["eagle3"], speculative_algorithm=None)
    assert without.max_running_requests is AS_WITHOUT_SPECULATION
    for said in ("without speculation", f"SGLang's {HOSTS_CAP}", "--max-running-requests"):
        assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "is_raised"),
    [
        ({}, True),
        ({"max_running_requests": 2048}, False),
        ({"cuda_graph_max_bs_decode": 16}, False),
        ({"speculative_num_steps": 3}, True),  # what names the tier to start at loses nothing
    ],
)
def test_every_process_knows_whose_number_it_is(
    target: dict[str, str], models: dict[str, str], changes: dict[str, Any], is_raised: bool
) -> None:
    """Start-up may take back ours (tier_builder.py:lower_cap)."""
    server_args = arguments(target["8b"], models["eagle3"], **changes)
    request = pickle.loads(pickle.dumps(options_of(server_args)))
    assert request.is_cap_raised == is_raised
    assert request == options_of(server_args)


@pytest.mark.parametrize(
    ("name", "tp_size", "cap"),
    [
        ("70b", 1, None),
        ("405b", 1, 88),
        ("405b", 2, 176),
        ("405b", 4, 256),  # the host has graphs up to 512 here
        ("405b", 8, None),
    ],
)
def test_more_heads_lower_it_and_ranks_share_them(
    target: dict[str, str], models: dict[str, str], name: str, tp_size: int, cap: int | None
) -> None:
    """2 GB hold the plans of 256 requests of 70B heads, and of 88 of 405B heads."""
    view = resolved(target[name], models["eagle3"], tp_size=tp_size)
    assert view.max_running_requests == cap


def test_the_drafts_heads_count_as_well(target: dict[str, str], tmp_path: Path) -> None:
    """Its draft-extend and the catch-ups plan with them."""
    heads = {"num_attention_heads": 128, "num_key_value_heads": 8, "hidden_size": 128}
    draft = write_model(
        tmp_path / "draft", architectures=["LlamaForCausalLMEagle3"], head_dim=128, **heads
    )
    assert resolved(target["8b"], draft).max_running_requests == 88


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
    for largest, cap in ((None, None), (512, None), (100, 100), (16, HOSTS_CAP)):
        view = resolved(
            target["405b"], models["eagle3"], cuda_graph_max_bs_decode=largest, **on_fa3
        )
        assert view.max_running_requests == cap


@pytest.mark.parametrize(
    ("name", "tp_size", "cap"), [("8b", 1, None), ("70b", 2, None), ("70b", 1, 256)]
)
def test_larger_graphs_must_fit_before_more_requests_run_than_they_hold(
    target: dict[str, str], models: dict[str, str], name: str, tp_size: int, cap: int | None
) -> None:
    """Else catch-ups would get narrow: a draft-extend in every round of no speculation."""
    view = resolved(target[name], models["eagle3"], cuda_graph_max_bs_decode=512, tp_size=tp_size)
    assert view.max_running_requests == cap


@pytest.mark.parametrize(
    ("context_length", "backend", "cap"),
    [
        (131072, "flashinfer", None),
        (131072, "fa3", None),
        (131072, "triton", 168),  # its entries are 8 bytes long, and it keeps partial results
        (2**20, "flashinfer", 60),
        (2**20, "fa3", None),
        (2**20, "triton", HOSTS_CAP),
    ],
)
def test_an_index_takes_half_of_what_the_tiers_may(
    tmp_path: Path, context_length: int, backend: str, cap: int | None
) -> None:
    """All tiers share one, so that only the longest contexts are a limit."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    long: dict[str, Any] = {**heads, "max_position_embeddings": context_length}
    model = write_model(tmp_path / "target", **long)
    draft = write_model(tmp_path / "draft", architectures=["LlamaForCausalLMEagle3"], **long)
    view = resolved(model, draft, attention_backend=backend)
    assert view.max_running_requests == cap


@pytest.mark.parametrize(("memory_budget_gb", "cap"), [(4, 60), (32, None)])
def test_memory_granted_to_the_tiers_is_granted_to_their_index(
    models: dict[str, str], tmp_path: Path, memory_budget_gb: int, cap: int | None
) -> None:
    model = write_model(tmp_path / "target", max_position_embeddings=2**20)
    slots = {"1": [0, 1, 2, 3, 5, 7], "257": [0]}
    config = config_file(tmp_path, slots, memory_budget_gb=memory_budget_gb)
    view = resolved(model, models["eagle3"], speculative_adaptive_config=config)
    assert view.max_running_requests == cap


@pytest.mark.parametrize(("upper", "cap"), [("33", None), ("34", HOSTS_CAP)])
def test_a_small_gpu_has_the_cap_of_no_speculation_where_its_graphs_end_below_48(
    target: dict[str, str], models: dict[str, str], tmp_path: Path, upper: str, cap: int | None
) -> None:
    config = config_file(tmp_path, {"1": [0, 1, 3], upper: [0]})
    changes: dict[str, Any] = {"speculative_adaptive_config": config}
    view = resolved(target["8b"], models["eagle3"], cuda_graph_max_bs_decode=32, **changes)
    assert view.max_running_requests == cap


@pytest.mark.parametrize(
    ("slots", "cap"),
    [
        ({"1": [0, 1, 3]}, 256),
        ({"1": [0, 1, 3], "300": [0]}, 256),  # 257 to 299 would draft without graphs
        ({"1": [0, 1, 3], "257": [0], "600": [0, 1]}, 256),
        ({"1": [0, 1, 3], "200": [0]}, None),
        ({"1": {"candidate_steps": [0, 1], "candidate_tiers": [[2, 4, 7]]}}, 256),
        ({"1": {"candidate_tiers": [[2, 4, 7]]}, "33": [0, 1, 3], "257": [0]}, None),
    ],
)
def test_more_than_graphs_hold_run_where_the_config_has_them_at_zero_steps_alone(
    target: dict[str, str],
    models: dict[str, str],
    tmp_path: Path,
    slots: dict[str, Any],
    cap: int | None,
) -> None:
    config = config_file(tmp_path, slots)
    view = resolved(target["8b"], models["eagle3"], speculative_adaptive_config=config)
    assert view.max_running_requests == cap


def test_where_every_request_keeps_a_row_of_vocabulary_graphs_set_the_limit(
    target: dict[str, str], models: dict[str, str]
) -> None:
    view = resolved(target["8b"], models["eagle3"], speculative_use_rejection_sampling=True)
    assert view.max_running_requests == 256


@pytest.mark.parametrize(
    ("name", "changes", "sizes"),
    [
        ("8b", {}, (320, 384, 448, 512, 640, 768)),
        ("405b", {"attention_backend": "flashinfer", "tp_size": 8}, (640, 768)),  # beyond 512
        ("8b", {"max_running_requests": 300}, (320, 384, 448, 512, 640, 768)),  # up to 300
        ("8b", {"disable_cuda_graph": True}, ()),
        ("8b", {"moe_a2a_backend": "deepep"}, ()),
        ("8b", {"cuda_graph_max_bs_decode": 256}, ()),
        ("8b", {"cuda_graph_bs_decode": [1, 2, 4, 8, 64]}, ()),
    ],
)
def test_zero_steps_have_graphs_of_larger_batches_unless_the_user_named_sizes(
    target: dict[str, str],
    models: dict[str, str],
    name: str,
    changes: dict[str, Any],
    sizes: tuple[int, ...],
) -> None:
    request = options_of(arguments(target[name], models["eagle3"], **changes))
    assert request is not None
    assert request.larger_sizes == sizes


def test_larger_graphs_have_the_memory_that_the_index_may_take(
    target: dict[str, str], models: dict[str, str], tmp_path: Path
) -> None:
    config = config_file(tmp_path, {"1": [0, 1], "33": [0]}, memory_budget_gb=0.5)
    found = options_of(
        arguments(target["8b"], models["eagle3"], speculative_adaptive_config=config)
    )
    assert found is not None
    assert found.larger_sizes == (320, 384, 448, 512)


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        # Entries for requests and draft rows, a bit of mask for each of 15 tokens a request.
        (4, 1000 * (4 * (4 + 4) + 4 * 15 // 8)),
        (8, 1000 * (4 * (8 + 8) + 8 * 15 // 8)),
        (16, 1000 * (4 * (16 + 8) + 16 * 15 // 8)),  # one step drafts for up to 8
    ],
)
def test_an_index_is_as_large_as_the_largest_batch_of_each_tier_needs_it(
    size: int, num_bytes: int
) -> None:
    from sglang_adaptive_spec.host.launch.request_cap import index_gb

    index = IndexShape(["flashinfer"], 1000, page_size=1, num_pools=1, row_bytes=0)
    slots = {"1": {"candidate_steps": [0, 1]}, "9": {"candidate_steps": [0]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    assert index_gb(config, OF_A_DRAFT, index, size) == num_bytes / 2**30


def test_trees_have_tables_and_a_mask_where_they_are_in_reach() -> None:
    from sglang_adaptive_spec.host.launch.request_cap import index_gb

    index = IndexShape(["fa3"], 1000, page_size=10, num_pools=1, row_bytes=0)
    slots = {"1": {"candidate_steps": [1]}, "9": {"candidate_tiers": [[2, 4, 7]]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    assert index_gb(config, OF_A_DRAFT, index, 8) == 4 * 8 * 100 / 2**30
    of_trees = 1000 * (4 * 16 + 16 * 7)
    assert index_gb(config, OF_A_DRAFT, index, 16) == (4 * 16 * 100 + of_trees) / 2**30


def test_a_table_has_trees_at_every_tier_and_no_indices_of_draft_steps() -> None:
    from sglang_adaptive_spec.host.launch.request_cap import index_gb

    slots = {"1": {"candidate_steps": [0, 7]}}
    config = parse_config("test", json.dumps({"policy": "goodput", **slots}).encode())
    index = IndexShape(["fa3"], 1000, page_size=10, num_pools=1, row_bytes=0)
    of_trees = 1000 * (4 * 8 + 8 * 8)
    assert index_gb(config, OF_A_TABLE, index, 8) == (4 * 8 * 100 + of_trees) / 2**30
    index = IndexShape(["triton"], 1000, page_size=1, num_pools=1, row_bytes=0)
    assert index_gb(config, OF_A_TABLE, index, 8) == 1000 * (8 * 8 + 8 * 8) / 2**30


def test_a_deep_tier_counts_at_every_batch_size(
    target: dict[str, str], models: dict[str, str], tmp_path: Path
) -> None:
    """Batches pad up: it may be captured above the slot that names it."""
    caps = []
    for steps in ([0, 1, 3], [0, 1, 3, 40]):
        config = config_file(tmp_path, {"1": steps, "100": [0, 1]})
        view = resolved(target["70b"], models["eagle3"], speculative_adaptive_config=config)
        caps.append(view.max_running_requests)
    assert caps == [256, 136]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"disable_cuda_graph": True}, "no decode graphs"),
        ({"device": "cpu", "attention_backend": "triton"}, "no decode graphs"),
        ({"device": "cpu", "attention_backend": "intel_amx"}, "attention backend intel_amx"),
        ({"attention_backend": "torch_native"}, "attention backend torch_native"),
        ({"speculative_draft_attention_backend": "flashmla"}, "attention backend flashmla"),
        ({"moe_a2a_backend": "deepep"}, "all-to-all backend deepep"),
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
    assert f"up to {HOSTS_CAP} running requests, SGLang's cap" in caplog.text
    assert why in caplog.text


def test_it_stays_where_requests_have_recurrent_state(
    target: dict[str, str],
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "sglang_adaptive_spec.host.launch.request_cap.mambaish_config", lambda _model: object()
    )
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert resolved(target["8b"], models["eagle3"]).max_running_requests == HOSTS_CAP
    assert "recurrent state" in caplog.text


def test_latent_attention_plans_in_little_room(
    target: dict[str, str], models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sglang_adaptive_spec.host.launch.request_cap.use_mla_backend", lambda _server_args: True
    )
    assert resolved(target["405b"], models["eagle3"]).max_running_requests is None


@pytest.mark.parametrize("backend", ["flashinfer", "fa3", "triton"])
def test_a_model_with_sliding_windows_has_a_cap_like_any_other(
    models: dict[str, str], tmp_path: Path, backend: str
) -> None:
    windows = {"is_hybrid_swa": True, "hybrid_layer_pattern": [1, 0], "sliding_window": 64}
    model = write_model(tmp_path / "target", **windows)
    view = resolved(model, models["eagle3"], attention_backend=backend)
    assert view.max_running_requests is AS_WITHOUT_SPECULATION


@pytest.mark.parametrize(
    ("draft", "changes"),
    [
        ("eagle3", {"max_running_requests": 8}),
        ("eagle3", {"speculative_algorithm": "EAGLE3"}),  # not ours
        ("eagle3", {"enable_two_batch_overlap": True}),  # static by its flags
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
