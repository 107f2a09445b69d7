"""Forwards get bounds where the CPU knows no lengths, and FlashInfer's verifies get the lengths."""

from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.contract.table import HOOK_TARGETS
from sglang_adaptive_spec.host.host_round import open_round
from tests.host.test_kv_index import CONTEXT, THREE, fa3, triton

RESERVED = (24, 40, 17)  # tokens of each request
LENS = (11, 30, 9)
ROWS = (4, 2, 7)  # of the host's request pool


@pytest.fixture
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.attention import lengths

    return lengths


def batch(**fields: Any) -> Any:
    """A decode batch as the scheduler hands it over, without lengths on the CPU."""
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=each)) for each in RESERVED]
    rows = torch.tensor(ROWS)
    both = {"req_pool_indices": rows, "req_pool_indices_cpu": rows}
    unknown = {"seq_lens_cpu": None, "seq_lens_sum": None}
    return SimpleNamespace(reqs=reqs, spec_info="drafts to verify", **both, **(unknown | fields))


def relay() -> Any:
    """The host's own relay, as far as lengths go."""
    from sglang.srt.managers.overlap_utils import FutureMap

    made: Any = object.__new__(FutureMap)
    made.new_seq_lens_buf = torch.zeros(8, dtype=torch.int64)
    made.new_seq_lens_buf[list(ROWS)] = torch.tensor(LENS)
    made.needs_cpu_seq_lens, made.publish_ready = False, None
    made.fwd_prepare_d2h_stream = None
    return made


def lengths(module: Any, is_on: bool = True) -> Any:
    made = module.LateLengths(is_on)
    made.connect(relay())
    return made


def test_a_draft_gets_what_is_reserved_and_its_verify_the_lengths(module: Any) -> None:
    late, asked = lengths(module), batch()
    assert late.bound(asked)
    assert asked.seq_lens_cpu.tolist() == list(RESERVED)
    assert asked.seq_lens_sum == sum(RESERVED)
    late.fetch(asked)
    assert asked.seq_lens_cpu.tolist() == list(LENS)
    assert asked.seq_lens_sum == sum(LENS)
    assert asked.spec_info == "drafts to verify"
    assert not late._relay.needs_cpu_seq_lens  # the scheduler goes on without


@pytest.mark.parametrize("is_on", [False, True])
def test_known_lengths_stay(module: Any, is_on: bool) -> None:
    known = torch.tensor(LENS)
    late, asked = lengths(module, is_on), batch(seq_lens_cpu=known, seq_lens_sum=sum(LENS))
    assert not late.bound(asked)
    assert asked.seq_lens_cpu is known


def test_other_backends_are_told_nothing(module: Any) -> None:
    late, asked = lengths(module, is_on=False), batch()
    assert not late.bound(asked)
    assert asked.seq_lens_cpu is None


def server(module: Any, changes: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns what `may_be_late` takes, of a server where it may be; ``changes`` by name."""

    def backend(name: str) -> Any:
        made: Any = object.__new__(changes.get(f"{name}_type", module.FlashInferAttnBackend))
        made.prefill_backend, made.dispatch_reason = "fa2", changes.get(f"{name}_reason")
        made.decode_use_tensor_cores = changes.get(f"{name}_tensor_cores", True)
        made.is_multimodal = changes.get(f"{name}_multimodal", False)
        return made

    flags = ("disable_overlap_schedule", "enable_mixed_chunk", "enable_dp_attention")
    view = SimpleNamespace(dp_size=2, **{name: changes.get(name, False) for name in flags})
    if "attn_dp_size" in changes:  # since 0.5.22
        view.attn_dp_size = changes["attn_dp_size"]
    draft = SimpleNamespace(
        plan_stream=changes.get("plan_stream"), draft_extend_attn_backend=backend("draft")
    )
    return view, backend("target"), draft


def test_flashinfer_under_the_overlap_schedule_may_be_late(module: Any) -> None:
    assert module.may_be_late(*server(module, {}))


@pytest.mark.parametrize(
    "changes",
    [
        {"disable_overlap_schedule": True},
        {"enable_mixed_chunk": True},
        {"enable_dp_attention": True},
        {"attn_dp_size": 2},
        {"plan_stream": "a stream"},
        {"target_reason": "a sliding window"},
        {"draft_reason": "a sliding window"},
        {"draft_tensor_cores": False},
        {"target_multimodal": True},
        {"target_type": type("TritonAttnBackend", (), {})},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_needs_lengths_waits_for_them(module: Any, changes: dict[str, Any]) -> None:
    assert not module.may_be_late(*server(module, changes))


def test_where_the_host_checks_that_a_length_is_taken_once_the_batch_has_it(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_IS_IN_CI", "1")
    late, asked = lengths(module), batch(seq_lens=torch.tensor(LENS))
    late._relay.new_seq_lens_buf.fill_(-1)  # as the host leaves it
    late.bound(asked)
    late.fetch(asked)
    assert asked.seq_lens_cpu.tolist() == list(LENS)
    assert asked.seq_lens_sum == sum(LENS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"disable_overlap_schedule": True},
        {"enable_mixed_chunk": True},
        {"enable_dp_attention": True},
        {"needs_cpu_seq_lens": True},
    ],
    ids=lambda changes: next(iter(changes), "FA3"),
)
def test_a_table_s_decodes_wait_for_lengths_only_where_they_need_them(
    module: Any, changes: dict[str, Any]
) -> None:
    view, _, _ = server(module, changes)
    backend = SimpleNamespace(needs_cpu_seq_lens=changes.get("needs_cpu_seq_lens", False))
    assert module.decodes_without(view, backend) == (not changes)
    assert not module.decodes_without(view, object())  # who does not say needs them


def test_who_asks_only_to_verify_is_given_lengths_and_no_other_round_waits(module: Any) -> None:
    late, asked = lengths(module, is_on=False), batch()
    late._relay.needs_cpu_seq_lens = True
    late.ask_only_to_verify()
    assert not late._relay.needs_cpu_seq_lens
    late.fetch(asked)
    assert asked.seq_lens_cpu.tolist() == list(LENS)
    assert not late._relay.needs_cpu_seq_lens


@pytest.mark.parametrize("is_on", [False, True])
def test_the_scheduler_waits_only_for_backends_that_need_lengths(module: Any, is_on: bool) -> None:
    from sglang_adaptive_spec.host.serving.worker import AdaptiveEagleWorker

    worker: Any = object.__new__(AdaptiveEagleWorker)
    worker._late_lengths = module.LateLengths(is_on)
    target = SimpleNamespace(model_runner=SimpleNamespace(attn_backend="target's"))
    worker._target_worker = target
    worker._draft_worker = SimpleNamespace(
        draft_attn_backend="draft's", draft_extend_attn_backend="the extend's"
    )
    assert bool(worker.spec_v2_attn_backends) != is_on


# -- forwards without a graph, on backends that need no lengths --

FA3 = "sglang_adaptive_spec.host.attention.fa3.bound_page_table"
TRITON = "sglang_adaptive_spec.host.attention.lengths.bound_slots"
ALLOCATED = (5, 9, 7)  # tokens that the scheduler has reserved for each request
LONGEST = 9
SIZE = len(ALLOCATED)
HOOKS = [(FA3, "seq_lens_cpu", [LONGEST] * SIZE), (TRITON, "seq_lens_sum", LONGEST * SIZE)]


def open_allocated() -> None:
    """Opens a round of ``ALLOCATED``."""
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=each)) for each in ALLOCATED]
    open_round(reqs)  # type: ignore[arg-type]


@pytest.fixture
def eager(plugins_loaded: None) -> None:
    open_allocated()


def forward_batch(**fields: Any) -> Any:
    """A forward as a backend sees it, without lengths on the CPU."""
    return SimpleNamespace(batch_size=SIZE, **{"seq_lens_cpu": None, "seq_lens_sum": None} | fields)


class Init:
    """Stands for a backend's `init_forward_metadata`: remembers the lengths it was shown."""

    def __init__(self, field: str, error: Exception | None = None) -> None:
        self.field, self.error = field, error
        self.seen: list[Any] = []

    def __call__(self, _backend: Any, forward: Any, mode: str, *, flag: bool) -> str:
        lengths = getattr(forward, self.field)
        self.seen.append(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)
        if self.error:
            raise self.error
        return f"{mode} {flag}"


@pytest.mark.parametrize(("hook", "field", "expected"), HOOKS)
@pytest.mark.parametrize("error", [None, RuntimeError("no kernel")])
def test_the_longest_bounds_the_forward_and_is_taken_back_whatever_happens(
    eager: None, hook: str, field: str, expected: Any, error: Exception | None
) -> None:
    forward, init = forward_batch(), Init(field, error)
    bound = resolve_name(hook)
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
    eager: None, hook: str, field: str, given: int | None, has_requests: bool
) -> None:
    if not has_requests:
        open_round(())
    forward, init = forward_batch(**{field: given}), Init(field)
    resolve_name(hook)(init, None, forward, "verify", flag=False)
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


@pytest.mark.parametrize(
    ("hook", "target", "width"),
    [
        (FA3, "FlashAttentionBackend.init_forward_metadata", width_of_page_table),
        (TRITON, "TritonAttnBackend.init_forward_metadata", num_slots),
    ],
)
def test_the_hosts_backends_look_up_whole_contexts_unless_bounded(
    eager: None, hook: str, target: str, width: Callable[..., int]
) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    forward = forward_batch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        seq_lens=torch.tensor(ALLOCATED),
        req_pool_indices=torch.arange(SIZE),
        spec_info=SimpleNamespace(
            num_tokens_per_req=THREE.num_draft_tokens, custom_mask=None, ragged_verify_layout=None
        ),
        encoder_lens=None,
    )
    init, bound = resolve_name(HOOK_TARGETS[target]), resolve_name(hook)
    assert width(init, forward) == CONTEXT
    assert width(lambda *args: bound(init, *args), forward) == LONGEST
