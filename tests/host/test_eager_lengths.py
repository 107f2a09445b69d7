"""Forwards look up as much as the longest request may have, and nothing else."""

from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.contract.table import HOOK_TARGETS
from sglang_adaptive_spec.host.host_round import open_round
from tests.host.test_shared_index import CONTEXT, THREE, fa3, triton

ALLOCATED = (5, 9, 7)  # tokens that the scheduler has reserved for each request
LONGEST = 9
SIZE = len(ALLOCATED)
HOOKS = [
    ("bound_page_table", "seq_lens_cpu", [LONGEST] * SIZE),
    ("bound_slots", "seq_lens_sum", LONGEST * SIZE),
]


@pytest.fixture
def eager(plugins_loaded: None) -> Any:
    """The module, in a round of ``ALLOCATED``."""
    from sglang_adaptive_spec.host.attention import eager_lengths

    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=each)) for each in ALLOCATED]
    open_round(reqs)  # type: ignore[arg-type]
    return eager_lengths


def batch(**fields: Any) -> Any:
    """A forward as a backend sees it, without lengths on the CPU."""
    return SimpleNamespace(batch_size=SIZE, **{"seq_lens_cpu": None, "seq_lens_sum": None} | fields)


class Init:
    """Stands for a backend's `init_forward_metadata`: remembers the lengths it was shown."""

    def __init__(self, field: str, error: Exception | None = None) -> None:
        self.field, self.error = field, error
        self.seen: list[Any] = []

    def __call__(self, _backend: Any, forward_batch: Any, mode: str, *, flag: bool) -> str:
        lengths = getattr(forward_batch, self.field)
        self.seen.append(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)
        if self.error:
            raise self.error
        return f"{mode} {flag}"


@pytest.mark.parametrize(("hook", "field", "expected"), HOOKS)
@pytest.mark.parametrize("error", [None, RuntimeError("no kernel")])
def test_the_longest_bounds_the_forward_and_is_taken_back_whatever_happens(
    eager: Any, hook: str, field: str, expected: Any, error: Exception | None
) -> None:
    forward, init = batch(), Init(field, error)
    bound = getattr(eager, hook)
    if error:
        with pytest.raises(RuntimeError, match="no kernel"):
            bound(init, None, forward, "verify", flag=True)
    else:
        assert bound(init, None, forward, "verify", flag=True) == "verify True"
    assert init.seen == [expected]
    assert getattr(forward, field) is None


@pytest.mark.parametrize(("hook", "field"), [each[:2] for each in HOOKS])
@pytest.mark.parametrize(("given", "has_requests"), [(4, True), (None, False)])
def test_lengths_of_the_host_and_rounds_without_requests_are_left_alone(
    eager: Any, hook: str, field: str, given: int | None, has_requests: bool
) -> None:
    if not has_requests:
        open_round(())
    forward, init = batch(**{field: given}), Init(field)
    getattr(eager, hook)(init, None, forward, "verify", flag=False)
    assert init.seen == [given]
    assert getattr(forward, field) == given


def width_of_page_table(init: Callable[..., Any], forward: Any) -> int:
    """Returns how many tokens of a request FlashAttentionBackend looks up beyond its drafts."""
    rows = torch.zeros((SIZE, 2 * CONTEXT), dtype=torch.int32)
    backend = fa3(
        THREE,
        req_to_token_pool=SimpleNamespace(req_to_token=rows),
        kv_index_translator=SimpleNamespace(is_translating=False),
        _kv_shard_pool=None,
    )
    init(backend, forward)
    return int(backend.forward_metadata.page_table.shape[1]) - THREE.num_draft_tokens


def num_slots(init: Callable[..., Any], forward: Any) -> int:
    """Returns how many slots TritonAttnBackend looks up per request."""
    filled: list[int] = []
    translator = SimpleNamespace(
        is_translating=False,
        fill_packed_read_stream=lambda total_tokens, **_: filled.append(total_tokens),
    )
    backend = triton(
        THREE,
        kv_index_translator=translator,
        kv_indptr=torch.zeros(SIZE + 1, dtype=torch.int32),
        mask_indptr=torch.zeros(SIZE + 1, dtype=torch.int64),
        window_kv_indptr=None,
    )
    init(backend, forward)
    assert filled == [backend.forward_metadata.kv_indices.numel()]
    return filled[0] // SIZE


@pytest.mark.parametrize(("kind", "width"), [("fa3", width_of_page_table), ("triton", num_slots)])
def test_the_hosts_backends_look_up_whole_contexts_unless_bounded(
    eager: Any, kind: str, width: Callable[..., int]
) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    forward = batch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        seq_lens=torch.tensor(ALLOCATED),
        req_pool_indices=torch.arange(SIZE),
        spec_info=SimpleNamespace(
            num_tokens_per_req=THREE.num_draft_tokens, custom_mask=None, ragged_verify_layout=None
        ),
        encoder_lens=None,
    )
    target, hook = next(iter(eager.HOOKS[kind].items()))
    init = resolve_name(HOOK_TARGETS[target])
    assert width(init, forward) == CONTEXT
    assert width(lambda *args: hook(init, *args), forward) == LONGEST


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_graph_of_a_draft_extend_finds_the_pages_of_the_longest(
    eager: Any, is_bounded: bool
) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    apply_of = applied(eager, is_bounded)
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, None) == (LONGEST if is_bounded else CONTEXT)
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, torch.tensor([4])) == 4
    open_round(())  # while graphs are captured
    assert apply_of(ForwardMode.DRAFT_EXTEND_V2, None) == CONTEXT


def applied(eager: Any, is_bounded: bool) -> Callable[..., int]:
    """Returns how many pages of a row FA3 writes before a graph, by mode and lengths given."""
    _, (target, hook) = eager.HOOKS["fa3"].items()
    apply = resolve_name(HOOK_TARGETS[target])

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
            hook(apply, backend, **arguments)
        else:
            apply(backend, **arguments)
        return int((backend.draft_extend_metadata["page_table"][0] != 0).sum())

    return width


@pytest.mark.parametrize(
    ("backends", "owners"),
    [
        ({"fa3"}, ["FlashAttentionBackend"] * 2),
        ({"flashinfer", "triton"}, ["TritonAttnBackend"]),
        ({"triton", "fa3"}, ["FlashAttentionBackend"] * 2 + ["TritonAttnBackend"]),
        ({"flashinfer", "intel_amx"}, []),
    ],
)
def test_backends_without_lengths_on_the_cpu_are_hooked_and_no_others(
    eager: Any, monkeypatch: pytest.MonkeyPatch, backends: set[str], owners: list[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(eager, "hook_now", asked.extend)
    eager.install_eager_hooks(backends)
    assert [target.split(".")[-2] for target in asked] == owners
    assert all(callable(resolve_name(HOOK_TARGETS[target])) for target in asked)
