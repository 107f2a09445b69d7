"""Plans of FlashInfer's graphs: chains without a mask, tiles of one width, no look at the device.

The host's own code plans, on the CPU, with a wrapper that notes what it is planned with.
"""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fake_flashinfer import change, fake_flashinfer

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LENS = [5, 9, 1]  # prefixes of a batch
TOKENS = 4  # of a request in a verify
ARGUMENTS = 20  # of the compiled module's plan; the last is uniform_q_len
HOSTS_ARGUMENTS = (*range(ARGUMENTS - 1), 0)


class Event:
    """An event that notes the order of what it is asked."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def record(self) -> None:
        self._log.append("record")

    def synchronize(self) -> None:
        self._log.append("synchronize")


class Compiled:
    """FlashInfer's compiled module, as far as plans go."""

    name = "compiled"

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.planned: list[tuple[Any, ...]] = []

    def plan(self, *args: Any) -> int:
        self._log.append("plan")
        self.planned.append(args)
        return len(self.planned)


class Wrapper:
    """BatchPrefillWithPagedKVCacheWrapper of one graph, as far as the host's plans touch it."""

    is_cuda_graph_enabled = True
    _backend = "fa2"
    device = torch.device("cpu")

    def __init__(self, batch_size: int, has_mask: bool, compiled: Compiled) -> None:
        ints = {"dtype": torch.int32}
        self._compiled = compiled
        self._cached_module: Any = None
        self._custom_mask_buf = torch.zeros(4096, dtype=torch.uint8) if has_mask else None
        self._mask_indptr_buf = torch.zeros(batch_size + 1, **ints) if has_mask else None
        self._qo_indptr_buf = torch.zeros(batch_size + 1, **ints)
        self._paged_kv_indptr_buf = torch.zeros(batch_size + 1, **ints)
        self._paged_kv_last_page_len_buf = torch.zeros(batch_size, **ints)
        self._paged_kv_indices_buf = torch.zeros(4096, **ints)
        self._max_total_num_rows = None
        self._float_workspace_buffer = self._int_workspace_buffer = None
        self._pin_memory_int_workspace_buffer = None
        self.first: dict[str, Any] = {}
        self.begin_forward: Callable[..., Any] = self.plan

    def plan(self, *_args: Any, **kwargs: Any) -> None:
        """FlashInfer's own, which reads lengths back: only before a capture."""
        assert not self.first, "planned by FlashInfer again"
        self.first = kwargs
        self._cached_module = self._compiled


@pytest.fixture
def plans(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.attention.flashinfer import plans

    return plans


@pytest.fixture
def log() -> list[str]:
    return []


def verify_input(topk: int, mask: torch.Tensor) -> Any:
    """The host's input of a verify of `TOKENS` tokens a request, whose index is made here."""
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    made = EagleVerifyInput.create_idle_input(topk, 1, TOKENS, device="cpu")
    lens = torch.tensor(LENS, dtype=torch.int32) + TOKENS
    bounds = torch.zeros(len(LENS) + 1, dtype=torch.int32)
    bounds[1:] = torch.cumsum(lens, dim=0)
    rows = torch.arange(len(LENS) + 1, dtype=torch.int32) * TOKENS
    index = torch.arange(int(bounds[-1]), dtype=torch.int32)
    made.custom_mask = mask
    made.generate_attn_arg_prefill = lambda *_args: (index, bounds, rows, mask)
    return made


def mode(name: str) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return ForwardMode[name]


def backend(log: list[str], **attributes: Any) -> Any:
    """A FlashInferAttnBackend's part in a capture; it notes the mask that it was told of."""
    made = SimpleNamespace(
        prefill_backend="fa2",
        dispatch_reason=None,
        workspace_buffer=torch.empty(0),
        kv_index_translator=SimpleNamespace(reads_are_translated=False),
        **attributes,
    )

    def prepare(self: Any, bs: int, num_tokens: int, forward_mode: Any, spec_info: Any) -> None:
        assert num_tokens == bs * TOKENS
        self.compiled = Compiled(log)
        self.has_mask = getattr(spec_info, "custom_mask", None) is not None
        self.wrapper = Wrapper(bs, self.has_mask, self.compiled)
        self.wrapper._int_workspace_buffer = f"{forward_mode.name} {bs}"
        self.forward_metadata = SimpleNamespace(prefill_wrappers=[self.wrapper])

    made.prepare = prepare
    return made


def captured(plans: Any, made: Any, topk: int, mask: torch.Tensor) -> Any:
    """Prepares and plans a verify as a capture does; returns the host's input."""
    spec = verify_input(topk, mask)
    plans.prepare_wrappers(
        made.prepare, made, len(LENS), len(LENS) * TOKENS, mode("TARGET_VERIFY"), spec
    )
    planned(plans, made, spec)
    return spec


def planned(plans: Any, made: Any, spec: Any) -> None:
    """Plans a verify through the host's own `call_begin_forward`."""
    from sglang.srt.layers.attention.flashinfer_backend import FlashInferIndicesUpdaterPrefill

    updater: Any = object.__new__(FlashInferIndicesUpdaterPrefill)
    vars(updater).update(
        attn_backend=made,
        num_qo_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        q_data_type=torch.bfloat16,
        data_type=torch.bfloat16,
        kv_last_page_len=torch.ones(8, dtype=torch.int32),
        req_to_token=None,
    )
    lens = torch.tensor(LENS)
    plans.pass_lengths(
        FlashInferIndicesUpdaterPrefill.call_begin_forward,
        updater,
        None,
        made.wrapper,
        torch.arange(len(LENS)),
        lens,
        sum(LENS),
        lens,
        None,
        None,
        torch.zeros(8),
        torch.zeros(8),
        False,
        spec,
        seq_lens_cpu=lens,
    )


@pytest.fixture
def events(plans: Any, log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(Event=lambda: Event(log))
    monkeypatch.setattr(torch, "get_device_module", lambda *_args: module)


@pytest.mark.usefixtures("events")
def test_a_chain_is_planned_causal_without_a_mask(plans: Any, log: list[str]) -> None:
    made = backend(log)
    spec = captured(plans, made, topk=1, mask=torch.ones(512, dtype=torch.bool))
    assert not made.has_mask, "a wrapper with room for a mask reads it"
    assert spec.custom_mask is not None, "the host's input is left as it is"
    assert made.wrapper.first["causal"]
    assert made.wrapper.first["custom_mask"] is None
    planned(plans, made, spec)
    for args in made.compiled.planned:  # the capture's like a replay's
        assert len(args) == ARGUMENTS
        assert args[-1] == TOKENS
        assert args[14] is True  # causal
        rows, bounds, lens = args[3:6]
        assert rows.tolist() == [0, 4, 8, 12]
        assert lens.tolist() == [9, 13, 5]  # the tokens to verify included
        assert bounds.tolist() == [0, 9, 22, 27]
    assert len(made.compiled.planned) == 2
    assert made.wrapper._paged_kv_indptr_buf.tolist() == [0, 9, 22, 27]
    assert made.wrapper._cached_module.name == "compiled"  # runs go to the module itself


@pytest.mark.usefixtures("events")
def test_a_plan_waits_for_the_copy_of_the_one_before(plans: Any, log: list[str]) -> None:
    made = backend(log)
    spec = captured(plans, made, topk=1, mask=torch.ones(512, dtype=torch.bool))
    planned(plans, made, spec)
    assert log == ["synchronize", "plan", "record"] * 2


@pytest.mark.usefixtures("events")
def test_a_tree_keeps_its_mask_bit_by_bit(
    plans: Any, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Any] = []

    def segment_packbits(*args: Any) -> None:
        packed.append(args)

    module = SimpleNamespace(segment_packbits=segment_packbits)
    monkeypatch.setattr(plans, "quantization_module", lambda: module)
    made = backend(log)
    mask = torch.ones(512, dtype=torch.bool)
    spec = captured(plans, made, topk=4, mask=mask)
    assert made.has_mask
    assert made.wrapper.first["custom_mask"] is mask
    planned(plans, made, spec)
    bits, bounds, target, order, buffer = packed[-1]
    assert bits.data_ptr() == mask.data_ptr()
    assert bounds.tolist() == [0, 36, 88, 108]
    assert target.tolist() == [0, 5, 12, 15]  # bytes: 36, 52 and 20 bits
    assert order == "little"
    assert buffer is made.wrapper._custom_mask_buf
    assert made.wrapper._mask_indptr_buf.tolist() == target.tolist()
    assert made.compiled.planned[-1][14] is False  # not causal
    assert made.compiled.planned[-1][-1] == TOKENS


@pytest.mark.usefixtures("events")
def test_lengths_that_the_host_does_not_tell_are_read(plans: Any, log: list[str]) -> None:
    made = backend(log)
    spec = captured(plans, made, topk=1, mask=torch.ones(512, dtype=torch.bool))
    made.wrapper.begin_forward.prefix_lens = None
    index, bounds, rows, mask = spec.generate_attn_arg_prefill()
    made.wrapper.begin_forward(
        rows, bounds, index, torch.ones(3), HEADS, KV_HEADS, HEAD_DIM, 1, custom_mask=mask
    )
    assert made.compiled.planned[-1][5].tolist() == [9, 13, 5]


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    "attributes", [{"prefill_backend": "cutlass"}, {"dispatch_reason": "SLIDING_WINDOW"}]
)
def test_other_kernels_and_windows_keep_the_hosts_plans(
    plans: Any, log: list[str], attributes: dict[str, Any]
) -> None:
    made = backend(log)
    vars(made).update(attributes)
    spec = verify_input(1, torch.ones(512, dtype=torch.bool))
    plans.prepare_wrappers(made.prepare, made, 3, 12, mode("TARGET_VERIFY"), spec)
    assert made.has_mask
    assert made.wrapper.begin_forward == made.wrapper.plan


@pytest.mark.usefixtures("events")
def test_a_draft_extend_is_captured_with_the_tiles_of_its_width(plans: Any, log: list[str]) -> None:
    made = backend(log)
    batch = SimpleNamespace(
        batch_size=3, forward_mode=mode("DRAFT_EXTEND_V2"), positions=torch.zeros(3 * TOKENS)
    )
    begun: list[Any] = []

    def begin(self: Any, forward_batch: Any, in_capture: bool = False) -> str:
        begun.append(in_capture)
        if in_capture:
            plans.prepare_wrappers(self.prepare, self, 3, 12, forward_batch.forward_mode, None)
            self.wrapper.plan()
        else:
            self.wrapper._cached_module.plan(*HOSTS_ARGUMENTS)
        return "begun"

    assert plans.begin_graph(begin, made, batch, in_capture=True) == "begun"
    assert begun == [True, False]
    assert made.compiled.planned == [(*HOSTS_ARGUMENTS[:-1], TOKENS)]
    plans.begin_graph(begin, made, batch)
    assert begun == [True, False, False]


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("is_draft", [False, True])
def test_decodes_wait_for_the_copy_of_the_plan_before(
    plans: Any, log: list[str], is_draft: bool
) -> None:
    made = backend(log, skip_prefill=is_draft)
    batch = SimpleNamespace(batch_size=3, forward_mode=mode("DECODE"))

    def begin(self: Any, forward_batch: Any, in_capture: bool = False) -> None:
        if in_capture:
            self.wrapper = Wrapper(3, False, Compiled(log))
            self.wrapper.plan()
            self.forward_metadata = SimpleNamespace(decode_wrappers=[self.wrapper])
        self.wrapper._cached_module.plan("as", "planned")

    plans.begin_graph(begin, made, batch, in_capture=True)
    assert log == ["plan"]
    plans.begin_graph(begin, made, batch)
    assert log[1:] == ["synchronize", "plan", "record"]
    assert made.wrapper._compiled.planned[-1] == ("as", "planned")


@pytest.mark.usefixtures("events")
def test_graphs_of_a_mode_share_buffers_and_the_mark_of_the_newest_copy(
    plans: Any, log: list[str]
) -> None:
    made = backend(log)
    spec = captured(plans, made, topk=1, mask=torch.ones(512, dtype=torch.bool))
    first = made.wrapper
    other = SimpleNamespace(**vars(made))
    captured(plans, made, topk=1, mask=torch.ones(512, dtype=torch.bool))
    assert made.wrapper._int_workspace_buffer == first._int_workspace_buffer == "TARGET_VERIFY 3"
    assert made.wrapper.begin_forward._copied is first.begin_forward._copied
    extend = mode("DRAFT_EXTEND_V2")
    plans.prepare_wrappers(made.prepare, made, 3, 12, extend, None)
    assert made.wrapper._int_workspace_buffer == "DRAFT_EXTEND_V2 3"
    assert other.forward_metadata.prefill_wrappers == [first]
    assert spec.custom_mask is not None


def test_the_width_goes_to_its_place_whether_the_host_names_the_last_argument_or_not(
    plans: Any, log: list[str]
) -> None:
    compiled = Compiled(log)
    module = plans.PlannedModule(compiled, Event(log), TOKENS)
    for given in (HOSTS_ARGUMENTS, HOSTS_ARGUMENTS[:-1]):
        module.plan(*given)
        assert compiled.planned[-1] == (*HOSTS_ARGUMENTS[:-1], TOKENS)
    with pytest.raises(AssertionError, match="leaves out an argument"):
        module.plan(*HOSTS_ARGUMENTS[:-2])


# -- a FlashInfer that is not known --


@pytest.fixture
def changed_flashinfer(plans: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed FlashInfer whose plan takes one argument more."""
    flashinfer = fake_flashinfer(tmp_path)
    change(
        flashinfer,
        "data/csrc/batch_prefill.cu",
        "int64_t uniform_q_len = 0)",
        "int64_t uniform_q_len = 0, bool is_packed = false)",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plans, "known_reason", cache(plans.known_reason.__wrapped__))


@pytest.mark.parametrize("is_in_use", [True, False])
@pytest.mark.usefixtures("changed_flashinfer")
def test_with_a_changed_flashinfer_the_hosts_own_plans_serve_with_one_warning(
    plans: Any, is_in_use: bool, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        hooks = plans.plan_hooks(is_in_use)
    assert hooks == {plans.BEGIN: plans.one_plan_at_a_time}
    assert not plans.has_uniform_plans(backend(log)), "drafts would not wait for lengths"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == is_in_use
    for message in messages:
        for part in ("plans to SGLang", "uniform_q_len, is_packed)", "0.6.18, 0.7.1, 0.7.2"):
            assert part in message


def test_with_a_known_flashinfer_plans_are_made_here_without_a_warning(
    plans: Any,
    log: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_flashinfer(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plans, "known_reason", cache(plans.known_reason.__wrapped__))
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        hooks = plans.plan_hooks(is_in_use=True)
    own = {plans.prepare_wrappers, plans.begin_graph, plans.pass_lengths, plans.know_bounds}
    assert set(hooks.values()) == own
    assert plans.has_uniform_plans(backend(log))
    assert caplog.records == []


@pytest.mark.usefixtures("events")
def test_where_plans_are_the_hosts_a_decode_waits_for_the_copy_of_the_plan_before(
    plans: Any, log: list[str]
) -> None:
    made = backend(log)

    def begin(_self: Any, _batch: Any, in_capture: bool = False) -> str:
        log.append(f"plan {in_capture}")
        return "begun"

    decode = SimpleNamespace(forward_mode=mode("DECODE"))
    assert plans.one_plan_at_a_time(begin, made, decode, in_capture=True) == "begun"
    plans.one_plan_at_a_time(begin, made, decode)
    assert log == ["synchronize", "plan True", "record", "synchronize", "plan False", "record"]
    verify = SimpleNamespace(forward_mode=mode("TARGET_VERIFY"))
    plans.one_plan_at_a_time(begin, made, verify)  # the host's reads lengths back
    assert log[6:] == ["plan False"]
