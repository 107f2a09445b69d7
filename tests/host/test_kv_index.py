"""Tiers find KV slots through one set of buffers: the host's own backends, made on the CPU.

They are made without ``__init__``, which needs a GPU, and asked for their graph buffers as the host
asks them: with the hooks around `init_cuda_graph_state`, for as long as a test runs.
"""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

from sglang_adaptive_spec.contract.table import HOOK_TARGETS
from sglang_adaptive_spec.host.attention.kv_index_size import Extent, IndexShape, triton_row_bytes
from sglang_adaptive_spec.host.sizes import OF_A_DRAFT
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier, chain_tier

MODULE = "sglang_adaptive_spec.host.attention.kv_index"
ATTENTION = "sglang.srt.layers.attention"
INIT = "init_cuda_graph_state"
CONTEXT, RESERVE = 4096, 32  # slots of a request, and those that a round reserves beyond them
ROW, SPARE = CONTEXT + RESERVE, 256
HEADS, HEAD_DIM, SPLITS = 4, 16, 8
THREE, SEVEN, TREE = chain_tier(3), chain_tier(7), Tier(3, 4, 16)


class CudaOnCpu(TorchFunctionMode):
    """Makes on the CPU what the host asks of CUDA by name."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def hooked(hook: Callable[..., Any], init: Callable[..., Any], is_around: bool) -> Any:
    """Applies a hook as the host's HookRegistry does."""
    if is_around:
        return lambda *args, **kwargs: hook(init, *args, **kwargs)
    return lambda *args, **kwargs: hook(init(*args, **kwargs), *args, **kwargs)


@pytest.fixture
def index(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An index whose hooks are in force; as on a GPU, for as long as a test runs."""
    from sglang.srt.layers.attention import verify_mask
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    from sglang_adaptive_spec.host.attention.kv_index import SharedIndex
    from sglang_adaptive_spec.host.startup.build_hooks import hooks_by_backend

    made = SharedIndex()
    made.row_slots = ROW
    monkeypatch.setattr(verify_mask, "default_tree_mask_mode", lambda: TreeMaskMode.FULL_MASK)
    for of_backend in hooks_by_backend(made).values():
        for hooks, is_around in zip(of_backend, (True, False), strict=True):
            for name in (each for each in hooks if each.endswith(f".{INIT}")):
                host_class = resolve_name(HOOK_TARGETS[name].rpartition(".")[0])
                init = hooked(hooks[name], vars(host_class)[INIT], is_around)
                monkeypatch.setattr(host_class, INIT, init)
    with CudaOnCpu():
        yield made


def made(owner: str, **attributes: Any) -> Any:
    """Returns a backend of the host's with what its graph buffers depend on."""
    host_class = resolve_name(f"{ATTENTION}.{owner}")
    backend = object.__new__(host_class)
    vars(backend).update(max_context_len=CONTEXT, device="cpu", skip_prefill=False)
    vars(backend).update(attributes)
    return backend


def fa3(tier: Tier, is_draft: bool = False, step: int = 0, **attributes: Any) -> Any:
    """A FlashAttentionBackend of a tier."""
    defaults = {
        "page_size": 1,
        "topk": tier.topk,
        "speculative_step_id": step,
        "speculative_num_draft_tokens": tier.num_draft_tokens,
        "is_draft_runner": is_draft,
        "is_encoder_decoder": False,
        "use_mla": False,
        "has_swa": False,
        "has_local_attention": False,
        "local_attn_builder": None,
        "use_sliding_window_kv_pool": False,
        "token_to_kv_pool": None,
        "_get_scheduler_metadata": None,
        "_verify_mask": None,
    }
    return made("flashattention_backend.FlashAttentionBackend", **{**defaults, **attributes})


def fa3_steps(tier: Tier, **attributes: Any) -> Any:
    """The draft steps of a tier on FA3."""
    return made(
        "flashattention_backend.FlashAttentionMultiStepBackend",
        speculative_num_steps=tier.num_steps,
        attn_backends=[fa3(tier, True, step, **attributes) for step in range(tier.num_steps - 1)],
    )


def triton(tier: Tier, is_draft: bool = False, **attributes: Any) -> Any:
    """A TritonAttnBackend of a tier."""
    defaults = {
        "num_head": HEADS,
        "max_kv_splits": SPLITS,
        "v_head_dim": HEAD_DIM,
        "swa_v_head_dim": None,
        "lean_total_programs": 1,
        "lean_block_m": 1,
        "num_draft_tokens": tier.num_draft_tokens,
        "is_draft_runner": is_draft,
        "sliding_window_size": None,
        "use_sliding_window_kv_pool": False,
        "kv_index_translator": SimpleNamespace(is_translating=False),
        "dllm_attention": None,
    }
    return made("triton_backend.TritonAttnBackend", **{**defaults, **attributes})


def triton_steps(tier: Tier, **attributes: Any) -> Any:
    """The draft steps of a tier on Triton."""
    steps = range(tier.num_steps - 1)
    return made(
        "triton_backend.TritonMultiStepDraftBackend",
        topk=tier.topk,
        speculative_num_steps=tier.num_steps,
        attn_backends=[triton(tier, True, skip_prefill=True, **attributes) for _ in steps],
        window_rail=False,
    )


def flashinfer(tier: Tier, is_draft: bool = False, **attributes: Any) -> Any:
    """A FlashInferAttnBackend; it knows no tier until a graph is captured."""
    del tier, is_draft
    num_wrappers = attributes.get("num_wrappers", 1)
    defaults = {
        "num_wrappers": num_wrappers,
        "kv_indptr": [torch.zeros(65, dtype=torch.int32) for _ in range(num_wrappers)],
        "use_sliding_window_kv_pool": False,
    }
    return made("flashinfer_backend.FlashInferAttnBackend", **{**defaults, **attributes})


def flashinfer_steps(tier: Tier, **_: Any) -> Any:
    """The draft steps of a tier on FlashInfer."""
    return made(
        "flashinfer_backend.FlashInferMultiStepDraftBackend",
        topk=tier.topk,
        speculative_num_steps=tier.num_steps,
        attn_backends=[flashinfer(tier, skip_prefill=True) for _ in range(tier.num_steps - 1)],
    )


def mla(tier: Tier, is_draft: bool = False) -> Any:
    """A FlashInferMLAAttnBackend."""
    del tier, is_draft
    indptr = torch.zeros(65, dtype=torch.int32)
    owner = "flashinfer_mla_backend.FlashInferMLAAttnBackend"
    return made(owner, kv_indptr=indptr, q_indptr_decode=indptr.clone())


def mla_steps(tier: Tier, **_: Any) -> Any:
    """The draft steps of a tier on FlashInfer with latent attention."""
    return made(
        "flashinfer_mla_backend.FlashInferMLAMultiStepDraftBackend",
        topk=tier.topk,
        speculative_num_steps=tier.num_steps,
        attn_backends=[mla(tier) for _ in range(tier.num_steps - 1)],
    )


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "fa3": (fa3, fa3_steps),
    "triton": (triton, triton_steps),
    "flashinfer": (flashinfer, flashinfer_steps),
    "flashinfer-mla": (mla, mla_steps),
}


class Stages(NamedTuple):
    """The backends of a tier."""

    target: Any
    extend: Any
    steps: Any  # None where the tier drafts once or never, which takes no graph


def build(kind: str, tier: Tier, size: int, **attributes: Any) -> Stages:
    """Asks a tier's backends for the buffers of graphs up to ``size``, as the host does."""
    make, make_steps = KINDS[kind]
    width = CATCH_UP_ROUNDS if tier == PLAIN_TIER else tier.num_draft_tokens
    shape = tier._replace(num_draft_tokens=width)  # worker.py:_build_plain_tier
    target, extend = make(shape, **attributes), make(shape, is_draft=True, **attributes)
    target.init_cuda_graph_state(size, size * tier.num_draft_tokens)
    steps = make_steps(tier, **attributes) if tier.num_steps > 1 else None
    if steps is not None:
        steps.init_cuda_graph_state(size, size * tier.topk)
    extend.init_cuda_graph_state(size, size * width)
    return Stages(target, extend, steps)


def build_all(index: Any, kind: str, largest: Mapping[Tier, int], **attributes: Any) -> Extent:
    """Builds tiers as at start-up; returns the extent."""
    extent = Extent.of(largest, OF_A_DRAFT)
    index.extent = extent
    for tier, size in largest.items():
        build(kind, tier, size, **attributes)
    return extent


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tables(backend: Any) -> dict[str, torch.Tensor]:
    """Returns every buffer that a FlashAttentionBackend keeps for graphs, by name."""
    return {
        f"{owner}.{name}": tensor
        for owner, metadata in vars(backend).items()
        if isinstance(metadata, dict)
        for name, tensor in metadata.items()
    }


def is_page_table(name: str) -> bool:
    return "expand" not in name and ("page_table" in name)


# -- one buffer, with room for all tiers --


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_deepest_first", [True, False])
def test_no_tier_takes_more_than_the_first_did(
    index: Any, kind: str, is_deepest_first: bool
) -> None:
    """The host's start-up tier is the deepest; one that captures nothing leaves it to others."""
    tiers = sorted((THREE, chain_tier(5), SEVEN), reverse=is_deepest_first)
    index.extent = Extent(requests=16, tokens=16 * 8, draft_rows=16 * 7)
    build(kind, tiers[0], 16)
    gb = index.gb
    assert gb > 0
    for tier in tiers[1:]:
        build(kind, tier, 16)
    build(kind, chain_tier(1), 8)
    assert index.gb == gb


def test_zero_steps_take_no_more_mask_than_their_catch_ups_have_tokens(index: Any) -> None:
    """Their target's backend is made for as many draft tokens, though it decodes one."""
    index.extent = Extent(requests=16, tokens=16 * CATCH_UP_ROUNDS, draft_rows=0)
    mask = build("triton", PLAIN_TIER, 16).target._verify_mask.buffer
    assert mask.numel() == 16 * CATCH_UP_ROUNDS * (CONTEXT + CATCH_UP_ROUNDS)
    assert mask.untyped_storage().nbytes() == pytest.approx(mask.nbytes, rel=0.01)


def test_who_asks_for_more_gets_more_and_who_asked_before_keeps_what_it_has(index: Any) -> None:
    """A tier was left out, and its batches fell back to one that was to hold fewer."""
    shared = index
    first = shared.take("slots", (4, 10), 50, torch.int32)
    assert first.shape == (4, 10)
    assert shared.gb == 4 * 50 / 2**30
    first.fill_(7)
    larger = shared.take("slots", (6, 10), 50, torch.int32)
    assert larger.shape == (6, 10)
    assert storage(larger) != storage(first)
    larger.fill_(8)
    assert first.eq(7).all()
    again = shared.take("slots", (4, 10), 50, torch.int32)
    assert storage(again) == storage(larger)


def test_buffers_of_other_names_rows_or_types_are_others(index: Any) -> None:
    shared = index
    ask = ("slots", (2, 8), 16, torch.int32)
    one = shared.take(*ask)
    others = [
        shared.take("mask", *ask[1:]),
        shared.take(*ask[:3], torch.int64),
        shared.instead_of("slots", torch.zeros(2, 8, dtype=torch.int32), 2, 2),
        shared.instead_of("slots", torch.zeros(2, 4, dtype=torch.int32), 2, 2),
    ]
    assert len({storage(one), *map(storage, others)}) == 5


# -- FlashAttention 3: tables of pages --


def fa3_tiers(index: Any) -> list[Any]:
    """Returns the backends of two tiers' stages."""
    index.extent = Extent(requests=16, tokens=64, draft_rows=48)
    tiers = [build("fa3", tier, size) for tier, size in ((THREE, 16), (chain_tier(1), 8))]
    return [
        backend
        for stages in tiers
        for backend in (stages.target, stages.extend, *getattr(stages.steps, "attn_backends", ()))
    ]


def assert_page_tables_alone_are_shared(backends: list[Any]) -> None:
    named = [(name, each) for backend in backends for name, each in tables(backend).items()]
    pages = {storage(each) for name, each in named if is_page_table(name)}
    assert len(pages) == 1
    rest = [storage(each) for name, each in named if not is_page_table(name)]
    assert len(set(rest) | pages) == len(rest) + 1


def test_page_tables_are_shared_by_tiers_and_stages_and_all_else_is_apart(index: Any) -> None:
    backends = fa3_tiers(index)
    assert len(backends) == 6
    assert_page_tables_alone_are_shared(backends)
    table = tables(backends[0])["target_verify_metadata.page_table"]
    assert table.shape == (16, CONTEXT)


def test_two_tiers_that_share_what_they_must_not_are_found(
    index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault planted on purpose: where queries start depends on the tier, and is written once."""
    tables = resolve_name(f"{MODULE}.PAGE_TABLES")
    monkeypatch.setattr(f"{MODULE}.PAGE_TABLES", (*tables, "cu_seqlens_q"))
    with pytest.raises(AssertionError):
        assert_page_tables_alone_are_shared(fa3_tiers(index))


def test_tables_hold_pages_and_those_of_trees_tokens(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=128, draft_rows=96)
    stages = build("fa3", TREE, 8, page_size=64)
    named = tables(stages.target)
    assert named["target_verify_metadata.page_table"].shape == (8, CONTEXT // 64)
    of_tree = named["target_verify_metadata_topk_normal.page_table"]
    assert of_tree.shape == (8, CONTEXT)
    of_draft = tables(stages.extend)["draft_decode_metadata_topk_normal.page_table"]
    assert storage(of_tree) == storage(of_draft)
    assert storage(of_tree) != storage(named["target_verify_metadata.page_table"])


def test_window_tables_of_target_and_draft_are_apart(index: Any) -> None:
    """Each finds its slots in a pool of its own."""
    index.extent = Extent(requests=8, tokens=64, draft_rows=56)
    pools = SimpleNamespace(), SimpleNamespace()
    found: list[set[int]] = []
    for pool, is_draft in zip(pools, (False, True), strict=True):
        windows = {"use_sliding_window_kv_pool": True, "token_to_kv_pool": pool}
        backends = [fa3(tier, is_draft, **windows) for tier in (THREE, SEVEN)]
        for backend in backends:
            backend.init_cuda_graph_state(8, 64)
        found.append(
            {
                storage(each)
                for backend in backends
                for name, each in tables(backend).items()
                if "swa_page_table" in name
            }
        )
    assert [len(each) for each in found] == [1, 1]  # tiers and stages share
    assert found[0].isdisjoint(found[1])


# -- FlashInfer and Triton: an index of slots --


@pytest.mark.parametrize("kind", ["flashinfer", "flashinfer-mla", "triton"])
def test_an_index_is_requests_times_context_however_many_tokens_are_verified(
    index: Any, kind: str
) -> None:
    index.extent = Extent(requests=16, tokens=16 * 8, draft_rows=16 * 7)
    indices = [
        each
        for tier, size in ((THREE, 8), (SEVEN, 16))
        for backend in build(kind, tier, size)[:2]
        for each in (
            backend.cuda_graph_kv_indices
            if isinstance(backend.cuda_graph_kv_indices, list)
            else [backend.cuda_graph_kv_indices]
        )
    ]
    assert [each.numel() for each in indices] == [8 * ROW + SPARE] * 2 + [16 * ROW + SPARE] * 2
    assert len(set(map(storage, indices))) == 1


def test_each_wrapper_of_flashinfer_has_an_index_of_its_own(index: Any) -> None:
    """One finds whole contexts, the other windows, in the same round."""
    index.extent = Extent(requests=8, tokens=64, draft_rows=0)
    tiers = [build("flashinfer", chain_tier(1), size, num_wrappers=2).target for size in (4, 8)]
    whole, windows = zip(*(target.cuda_graph_kv_indices for target in tiers), strict=True)
    assert len(set(map(storage, whole))) == len(set(map(storage, windows))) == 1
    assert storage(whole[0]) != storage(windows[0])
    assert [each.numel() for each in windows] == [4 * ROW + SPARE, 8 * ROW + SPARE]


def test_flashinfers_mask_has_a_bit_for_each_slot(index: Any) -> None:
    """FlashInfer packs it, and the mask of a request begins at a byte."""
    index.extent = Extent(requests=8, tokens=8 * 8, draft_rows=56)
    stages = build("flashinfer", THREE, 8), build("flashinfer", SEVEN, 8)
    masks = [each.target.cuda_graph_custom_mask for each in stages]
    assert len(set(map(storage, masks))) == 1
    assert [each.numel() for each in masks] == [8 * 4 * (ROW // 8 + 1), 8 * 8 * (ROW // 8 + 1)]
    assert masks[0].dtype == torch.uint8


@pytest.mark.parametrize("kind", ["flashinfer", "flashinfer-mla", "triton"])
def test_draft_steps_have_rows_of_their_own_and_tiers_share_them(index: Any, kind: str) -> None:
    index.extent = Extent(requests=8, tokens=64, draft_rows=8 * 7)
    three, seven = (build(kind, tier, 8).steps for tier in (THREE, SEVEN))
    for steps, tier in ((three, THREE), (seven, SEVEN)):
        rows = steps.cuda_graph_kv_indices
        assert rows.shape == (tier.num_steps, 8 * CONTEXT)
        handed = [of_step(backend) for backend in steps.attn_backends]
        assert [each.data_ptr() for each in handed] == [row.data_ptr() for row in rows[:-1]]
        assert len({each.data_ptr() for each in handed}) == tier.num_steps - 1
    assert storage(three.cuda_graph_kv_indices) == storage(seven.cuda_graph_kv_indices)


def of_step(backend: Any) -> torch.Tensor:
    """Returns the index of one draft step."""
    found = backend.cuda_graph_kv_indices
    row = found[0] if isinstance(found, list) else found
    assert isinstance(row, torch.Tensor)
    return row


def test_branches_of_a_tree_have_room_in_the_row_of_their_step(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=128, draft_rows=8 * 4 * 3)
    rows = build("triton", TREE, 8).steps.cuda_graph_kv_indices
    assert rows.shape == (3, 8 * 4 * CONTEXT)


def test_tritons_draft_steps_count_splits_together_as_the_host_has_them(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=64, draft_rows=24)
    steps = build("triton", THREE, 8).steps
    handed = {storage(backend.cuda_graph_num_kv_splits) for backend in steps.attn_backends}
    assert handed == {storage(steps.cuda_graph_num_kv_splits)}


def test_tritons_partial_results_are_shared_where_heads_are_alike(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=64, draft_rows=0)
    parts = ("cuda_graph_attn_logits", "cuda_graph_attn_lse")
    two, eight, other = triton(chain_tier(1)), triton(SEVEN), triton(SEVEN, num_head=2 * HEADS)
    for backend, width in ((two, 2), (eight, 8), (other, 8)):
        backend.init_cuda_graph_state(8, 8 * width)
    assert two.cuda_graph_attn_logits.shape == (16, HEADS, SPLITS, HEAD_DIM)
    for name in parts:
        buffers = [storage(getattr(backend, name)) for backend in (two, eight, other)]
        assert buffers[0] == buffers[1] != buffers[2]
    assert len({storage(getattr(two, name)) for name in parts}) == 2
    assert two.cuda_graph_swa_attn_logits is None


def test_tritons_windows_are_as_long_as_the_window(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=64, draft_rows=0)
    found = []
    for size in (4, 8):
        backend = triton(SEVEN, sliding_window_size=128)
        backend.init_cuda_graph_state(size, 8 * size)
        found.append(backend.cuda_graph_window_kv_indices)
    assert [each.numel() for each in found] == [4 * 128, 8 * 128]
    assert len(set(map(storage, found))) == 1


# -- the mask of a verify --


@pytest.mark.parametrize("kind", ["fa3", "triton"])
def test_tiers_share_the_mask_of_a_verify(index: Any, kind: str) -> None:
    index.extent = Extent(requests=16, tokens=8 * 16, draft_rows=96)
    masks = [build(kind, tier, 4).target._verify_mask for tier in (TREE, Tier(2, 4, 8))]
    assert len({storage(each.buffer) for each in masks}) == 1
    assert [each.buffer.numel() for each in masks] == [
        4 * width * (CONTEXT + width) for width in (16, 8)
    ]
    assert [each.fits(4) for each in masks] == [True, True]
    assert not masks[0].fits(5)


def test_the_draft_makes_no_mask(index: Any) -> None:
    index.extent = Extent(requests=8, tokens=128, draft_rows=96)
    assert build("triton", TREE, 8).extend._verify_mask is None


# -- what is allocated is what was estimated, or a little less --

CHAINS = {SEVEN: 8, PLAIN_TIER: 32, chain_tier(1): 32, THREE: 16}
WITH_TREE = {TREE: 4, **CHAINS}
LARGEST = {"chains": CHAINS, "with tree": WITH_TREE}
# Room for a whole verify beyond the context, which no estimate needs.
SPARE_SHARE = 1.02


def assert_planned(index: Any, estimated_gb: float, least: float) -> None:
    """Asserts that the buffers take no more than estimated, and at least a share of it."""
    assert least <= index.gb / estimated_gb <= SPARE_SHARE


@pytest.mark.parametrize("tiers", LARGEST)
@pytest.mark.parametrize(
    ("kind", "page_size"),
    [("fa3", 1), ("fa3", 64), ("flashinfer", 1), ("triton", 1)],
)
def test_the_estimate_is_what_is_allocated(
    index: Any, kind: str, page_size: int, tiers: str
) -> None:
    attributes = {"page_size": page_size} if kind == "fa3" else {}
    extent = build_all(index, kind, LARGEST[tiers], **attributes)
    row_bytes = triton_row_bytes(HEADS, HEAD_DIM, SPLITS)
    shape = IndexShape([kind], CONTEXT, page_size, 1, row_bytes)
    # With pages of one token, tables of pages and of tokens are one.
    least = 0.8 if (kind, page_size, tiers) == ("fa3", 1, "with tree") else 0.97
    assert_planned(index, shape.gb(extent, tiers == "with tree"), least)


def test_the_estimate_for_latent_attention_is_with_a_mask(index: Any) -> None:
    extent = build_all(index, "flashinfer-mla", CHAINS)
    assert_planned(index, IndexShape(["flashinfer"], CONTEXT, 1, 1, 0).gb(extent), least=0.8)


@pytest.mark.parametrize(
    ("kind", "windows"),
    [
        ("fa3", {"use_sliding_window_kv_pool": True, "token_to_kv_pool": SimpleNamespace()}),
        ("flashinfer", {"num_wrappers": 2}),
    ],
)
def test_the_estimate_for_windows_is_as_if_drafts_had_them_too(
    index: Any, kind: str, windows: dict[str, Any]
) -> None:
    extent = build_all(index, kind, CHAINS, **windows)
    assert_planned(index, IndexShape([kind], CONTEXT, 1, 2, 0).gb(extent), least=0.7)


def test_partial_results_of_other_heads_are_other_buffers(index: Any) -> None:
    extent = index.extent = Extent(requests=32, tokens=32 * 2, draft_rows=0)
    heads = (4 * HEADS, 2 * HEADS)
    for num_heads, is_draft in zip(heads, (False, True), strict=True):
        backend = triton(chain_tier(1), is_draft, num_head=num_heads)
        backend.init_cuda_graph_state(32, 64)
    view = SimpleNamespace(triton_attention_num_kv_splits=SPLITS, page_size=1)
    model = SimpleNamespace(context_len=CONTEXT, is_hybrid_swa=False)
    planned = [(num_heads, num_heads, HEAD_DIM) for num_heads in heads]
    shape = IndexShape.of(view, ["triton"], model, planned)
    assert_planned(index, shape.gb(extent), least=0.97)
