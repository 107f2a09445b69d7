"""What no row of the table can say of attention backends: entries of dicts, sizes, fallbacks."""

import ast
from collections.abc import Iterator

import pytest

from sglang_adaptive_spec.contract.source import HostSource
from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO, host_source

KV_INDEX = ast.parse((REPO / "sglang_adaptive_spec/host/attention/kv_index.py").read_text())
ATTENTION = "sglang.srt.layers.attention"
# Tables of FA3 that tiers keep apart: small ones, and those of windows under trees and of encoders.
APART = {
    ("draft_decode_metadata_topk_expand", "page_table"),
    ("target_verify_metadata_topk_expand", "page_table"),
    ("target_verify_metadata_topk_swa", "page_table"),
    ("encoder_metadata", "encoder_page_table"),
}


@pytest.mark.parametrize("version", TESTED)
def test_fa3_keeps_every_table_of_pages_where_ours_replaces_it(version: str) -> None:
    init = _node(version, "flashattention_backend", "FlashAttentionBackend.init_cuda_graph_state")
    tables = {entry for entry in _dict_entries(init) if "page_table" in entry[1]}
    owners, names = _constant("PAGE_METADATA"), _constant("PAGE_TABLES", "WINDOW_TABLES")
    shared = {(owner, name) for owner, name in tables if owner in owners and name in names}
    assert tables - shared == APART
    assert {owner for owner, _ in shared} == owners
    assert {name for _, name in shared} == names


@pytest.mark.parametrize("version", TESTED)
def test_a_mask_is_a_struct_that_can_be_copied_with_another_buffer(version: str) -> None:
    mask = _node(version, "verify_mask", "VerifyMask")
    assert isinstance(mask, ast.ClassDef)
    assert [ast.unparse(base) for base in mask.bases] == ["msgspec.Struct"]


@pytest.mark.parametrize("version", TESTED)
def test_triton_looks_up_no_more_of_a_request_than_its_window(version: str) -> None:
    update = ast.unparse(_node(version, "triton_backend", "update_sliding_window_buffer"))
    bound = "window_kv_lens = torch.minimum(seq_lens, torch.tensor(sliding_window_size))"
    assert update.count("window_kv_lens = ") == update.count(bound) == 1


@pytest.mark.parametrize("version", TESTED)
def test_flashinfer_plans_so_many_entries_more_than_there_are_tokens(version: str) -> None:
    updater = "FlashInferIndicesUpdaterPrefill.call_begin_forward"
    plan = ast.unparse(_node(version, "flashinfer_backend", updater))
    (spare,) = (
        ast.literal_eval(node.value)
        for node in KV_INDEX.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPARE_ENTRIES"
    )
    assert f"torch.empty(paged_kernel_lens_sum + {spare}" in plan


@pytest.mark.parametrize("version", TESTED)
@pytest.mark.parametrize(
    ("module", "owner", "dtype"),
    [
        ("flashinfer_backend", "FlashInferAttnBackend", "int32"),
        ("flashinfer_mla_backend", "FlashInferMLAAttnBackend", "int32"),
        ("triton_backend", "TritonAttnBackend", "int64"),
    ],
)
def test_an_index_has_the_type_that_ours_has(
    version: str, module: str, owner: str, dtype: str
) -> None:
    init = ast.unparse(_node(version, module, f"{owner}.init_cuda_graph_state"))
    _, _, made = init.partition("cuda_graph_kv_indices = torch.zeros(")
    assert f"dtype=torch.{dtype}, device=" in made.partition("\n")[0]


@pytest.mark.parametrize("version", TESTED)
def test_only_triton_has_splits_to_hand_to_its_draft_steps(version: str) -> None:
    host = HostSource(host_source(version))
    owners = {
        "flashinfer_backend": "FlashInferMultiStepDraftBackend",
        "flashinfer_mla_backend": "FlashInferMLAMultiStepDraftBackend",
        "triton_backend": "TritonMultiStepDraftBackend",
    }
    having = [
        owner
        for module, owner in owners.items()
        if host.find(f"{ATTENTION}.{module}", f"{owner}.cuda_graph_num_kv_splits")
    ]
    assert having == ["TritonMultiStepDraftBackend"]


@pytest.mark.parametrize("version", TESTED)
def test_without_lengths_a_forward_looks_up_whole_contexts(version: str) -> None:
    """Or the hooks on init_forward_metadata do nothing any more and can go."""
    fa3, triton = (
        ast.unparse(_node(version, module, f"{owner}.init_forward_metadata"))
        for module, owner in (
            ("flashattention_backend", "FlashAttentionBackend"),
            ("triton_backend", "TritonAttnBackend"),
        )
    )
    assert "seq_lens_cpu = forward_batch.seq_lens_cpu" in fa3
    assert "else self.max_context_len" in fa3
    assert "seq_lens_sum = forward_batch.seq_lens_sum" in triton
    assert "seq_lens_sum = bs * self.max_context_len" in triton
    resolve = host_source(version) / "sglang/srt/managers/overlap_utils.py"
    for name in ("seq_lens_cpu", "seq_lens_sum"):
        assert f"batch.{name} = None" in resolve.read_text()


def _node(version: str, module: str, name: str) -> ast.AST:
    """Returns a class, function or method of a module of attention backends."""
    path = host_source(version).joinpath(*ATTENTION.split("."), f"{module}.py")
    node: ast.AST = ast.parse(path.read_text())
    for part in name.split("."):
        assert isinstance(node, ast.Module | ast.ClassDef)
        node = next(child for child in node.body if getattr(child, "name", "") == part)
    return node


def _dict_entries(method: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields (a, k) for every `self.a = {k: ...}` and `self.a[k] = ...`."""
    for node in ast.walk(method):
        if not isinstance(node, ast.Assign):
            continue
        (target,) = node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
            yield target.value.attr, ast.literal_eval(target.slice)
        elif isinstance(target, ast.Attribute) and isinstance(node.value, ast.Dict):
            yield from ((target.attr, ast.literal_eval(key)) for key in node.value.keys if key)


def _constant(*names: str) -> set[str]:
    """Returns what the tuples of these names hold in our module."""
    return {
        item
        for node in KV_INDEX.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
        for item in ast.literal_eval(node.value)
    }


@pytest.mark.parametrize("version", TESTED)
def test_the_last_argument_of_a_compiled_plan_is_the_width(version: str) -> None:
    plan = ast.unparse(_node(version, "flashinfer_backend", "fast_prefill_plan"))
    assert "False, 0, 0]\n    self._plan_info = self._cached_module.plan(*args)" in plan
    source = (
        host_source(version) / "sglang/srt/layers/attention/flashinfer_backend.py"
    ).read_text()
    assert source.count("0,  # uniform_q_len\n    ]") == 1


@pytest.mark.parametrize("version", TESTED)
def test_draft_steps_copy_their_bounds_where_ours_answers(version: str) -> None:
    template = ast.unparse(
        _node(version, "flashinfer_backend", "FlashInferMultiStepDraftBackend.common_template")
    )
    assert template.count("self.kv_indptr[:, :bs + 1].cpu()") == template.count(".cpu()") == 1
    if "window" in template:  # bounds of a window are others, and ours does not answer
        assert "self.draft_window_size" in template
