"""FA3's draft-extends get graphs where the host leaves them out, and the pages of the longest."""

import contextlib
from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.contract.table import HOOK_TARGETS
from sglang_adaptive_spec.contract.versions import TESTED
from sglang_adaptive_spec.host.host_round import open_round
from tests.host.test_kv_index import CONTEXT, THREE, fa3, triton
from tests.host.test_lengths import ALLOCATED, LONGEST, open_allocated
from tests.hosts import host_source

SIZE = len(ALLOCATED)


class Runner:
    """Stands for the runner, which captures when it is made."""

    def __init__(self, draft_worker: Any) -> None:
        self.draft_worker = draft_worker


@pytest.fixture
def graphs(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, on a host with decode graphs, with a runner that captures nothing."""
    from sglang_adaptive_spec.host.attention import fa3 as module

    monkeypatch.setattr(module, "ExtendGraphRunner", Runner)
    monkeypatch.setattr(module, "resolved_view", lambda server_args: server_args)
    monkeypatch.setattr(module, "attention_backends", lambda view: {view.attention_backend})
    monkeypatch.setattr(module, "check_cuda_graph_backend", lambda *_: False)
    return module


def backend(**attributes: Any) -> Any:
    """FA3 as a draft-extend runs on it."""
    translator = SimpleNamespace(is_translating=attributes.pop("is_translating", False))
    defaults = {"fa_impl_ver": 3, "kv_index_translator": translator}
    return fa3(THREE, is_draft=True, **{**defaults, **attributes})


def worker(extend_backend: Any, attention_backend: str = "fa3", runner: Any = None) -> Any:
    """A draft worker that has just captured what the host captures."""
    return SimpleNamespace(
        server_args=SimpleNamespace(attention_backend=attention_backend),
        draft_extend_attn_backend=extend_backend,
        cuda_graph_runner_for_draft_extend=runner,
    )


def test_the_missing_graphs_are_captured_for_this_worker(graphs: Any) -> None:
    draft_worker = worker(backend())
    graphs.capture_missing_extends(draft_worker)
    assert draft_worker.cuda_graph_runner_for_draft_extend.draft_worker is draft_worker


def test_graphs_of_the_host_stay(graphs: Any) -> None:
    of_host = object()
    draft_worker = worker(backend(), runner=of_host)
    graphs.capture_missing_extends(draft_worker)
    assert draft_worker.cuda_graph_runner_for_draft_extend is of_host


@pytest.mark.parametrize(
    "attributes",
    [
        {"fa_impl_ver": 4},
        {"is_translating": True},
        {
            "use_sliding_window_kv_pool": True,
            "token_to_kv_pool": SimpleNamespace(full_to_swa_index_mapping=None),
        },
    ],
)
def test_a_table_that_a_graph_cannot_fill_is_left_alone(
    graphs: Any, attributes: dict[str, Any]
) -> None:
    draft_worker = worker(backend(**attributes))
    graphs.capture_missing_extends(draft_worker)
    assert draft_worker.cuda_graph_runner_for_draft_extend is None


@pytest.mark.parametrize("named", ["triton", "fa3"])
def test_other_backends_are_left_alone(graphs: Any, named: str) -> None:
    draft_worker = worker(triton(THREE), named)
    graphs.capture_missing_extends(draft_worker)
    assert draft_worker.cuda_graph_runner_for_draft_extend is None


def test_graphs_that_are_off_stay_off(graphs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.environ import envs

    draft_worker = worker(backend())
    with envs.SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH.override(True):
        graphs.capture_missing_extends(draft_worker)
    monkeypatch.setattr(graphs, "check_cuda_graph_backend", lambda *_: True)
    graphs.capture_missing_extends(draft_worker)
    assert draft_worker.cuda_graph_runner_for_draft_extend is None


def test_a_capture_finds_the_width_of_its_own_tier(plugins_loaded: None) -> None:
    from sglang_adaptive_spec.host.attention.fa3 import capture_extend

    worker = SimpleNamespace(capturing=lambda _: contextlib.nullcontext())
    shared = SimpleNamespace(extend_seq_lens=torch.full((4,), 15, dtype=torch.int32))
    runner = SimpleNamespace(buffers=shared, captured_req_width=4, eagle_worker=worker)
    seen: list[Any] = []

    def capture(runner: Any, size: int, *, forward: str) -> str:
        seen.append(runner.buffers.extend_seq_lens.tolist())
        return f"{size} {forward}"

    assert capture_extend(capture, runner, 4, forward="model") == "4 model"
    assert seen == [[4] * 4]


@pytest.mark.parametrize("version", TESTED)
def test_replays_write_the_width_that_captures_must_be_told(version: str) -> None:
    """Else a graph would replay with the lengths of another tier."""
    name = "sglang/srt/speculative/eagle_draft_extend_cuda_graph_runner.py"
    source = (host_source(version) / name).read_text()
    assert 'share_buffers(exclude={"select_index"})' in source  # our hook can go when this changes
    execute = source[source.index("def execute") :]
    assert "buffers.extend_seq_lens.fill_(self.captured_req_width)" in execute
    assert "copy_dsts.append(buffers.extend_seq_lens[:raw_bs])" in execute


def test_the_scheduler_waits_for_reads_inside_the_graph(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.host.attention import fa3 as module

    host_runner = module.EAGLEDraftExtendCudaGraphRunner

    def execute(self: Any, forward_batch: str, select_index: str) -> str:
        self.model_runner.shared_read_done_event = "before the graph"
        return f"{forward_batch} {select_index}"

    monkeypatch.setattr(host_runner, "execute", execute)
    runner = object.__new__(module.ExtendGraphRunner)
    runner.model_runner = SimpleNamespace(shared_read_done_event=None)
    assert runner.execute("batch", select_index="rows") == "batch rows"
    assert runner.model_runner.shared_read_done_event is None


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_graph_of_a_draft_extend_finds_the_pages_of_the_longest(
    plugins_loaded: None, is_bounded: bool
) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    open_allocated()
    apply_of = applied(is_bounded)
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, None) == (LONGEST if is_bounded else CONTEXT)
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, torch.tensor([4])) == 4
    open_round(())  # while graphs are captured
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, None) == CONTEXT


def applied(is_bounded: bool) -> Callable[..., int]:
    """Returns how many pages of a row FA3 writes before a graph, by mode and lengths given."""
    from sglang_adaptive_spec.host.attention.fa3 import bound_extend_table

    apply = resolve_name(HOOK_TARGETS["FlashAttentionBackend._apply_cuda_graph_metadata"])

    def width(forward_mode: Any, seq_lens_cpu: Any) -> int:
        rows = torch.arange(1, SIZE * 2 * CONTEXT + 1, dtype=torch.int32).view(SIZE, -1)
        backend = fa3(THREE, req_to_token_pool=None, req_to_token=rows)
        backend.init_cuda_graph_state(SIZE, SIZE * THREE.num_draft_tokens)
        spec_info = SimpleNamespace(num_tokens_per_req=THREE.num_draft_tokens)
        backend._bind_metadata_buffers(
            SIZE, SIZE * THREE.num_draft_tokens, None, forward_mode, spec_info, "cpu"
        )
        arguments = {
            "bs": SIZE,
            "req_pool_indices": torch.arange(SIZE),
            "seq_lens": torch.tensor(ALLOCATED),
            "encoder_lens": None,
            "forward_mode": forward_mode,
            "spec_info": spec_info,
            "seq_lens_cpu": seq_lens_cpu,
        }
        if is_bounded:
            bound_extend_table(apply, backend, **arguments)
        else:
            apply(backend, **arguments)
        return int((backend.draft_extend_metadata["page_table"][0] != 0).sum())

    return width
