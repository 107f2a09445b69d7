"""How wide a catch-up of the draft is, in what parts it goes, what it makes of mixed batches."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def catch_up(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.drafters import catch_up

    return catch_up


@pytest.mark.parametrize(
    ("hot_token_id", "expected"),
    [(None, [0, 5, 1]), (torch.tensor([7, 1, 2, 3, 4, 9]), [7, 9, 1])],
)
def test_a_first_draft_is_compared_in_the_targets_vocabulary(
    plugins_loaded: None, hot_token_id: torch.Tensor | None, expected: list[int]
) -> None:
    from sglang_adaptive_spec.host.drafters.eagle import EagleDrafter

    drafter = object.__new__(EagleDrafter)
    drafter._draft = SimpleNamespace(hot_token_id=hot_token_id)
    proposed = SimpleNamespace(topk_index=torch.tensor([[0, 9], [5, 9], [1, 9]]))
    found = drafter.first_drafts(proposed)
    assert found is not None
    assert found.tolist() == expected
    assert drafter.first_drafts(SimpleNamespace(topk_index=None)) is None


def draft_worker(workspace_mb: int | None, num_heads: int = 32, num_kv_heads: int = 8) -> Any:
    """A draft worker as far as the width of a catch-up depends on it."""
    backend = SimpleNamespace()
    if workspace_mb is not None:
        backend.workspace_buffer = torch.empty(workspace_mb * 2**20, dtype=torch.uint8)
    config = SimpleNamespace(
        num_attention_heads=num_heads, head_dim=128, get_num_kv_heads=lambda _tp: num_kv_heads
    )
    return SimpleNamespace(
        draft_extend_attn_backend=backend, draft_runner=SimpleNamespace(model_config=config)
    )


@pytest.mark.parametrize(
    ("worker", "batch_size", "width"),
    [
        (draft_worker(None), 128, 15),  # a backend without such a workspace
        (draft_worker(384), 128, 15),  # 16 did not fit on the H200
        (draft_worker(128), 32, 15),
        (draft_worker(340), 128, 8),
        (draft_worker(128, num_heads=64), 128, 1),  # as narrow as the host's own
    ],
)
def test_a_catch_up_is_as_wide_as_its_plan_fits(
    catch_up: Any, worker: Any, batch_size: int, width: int
) -> None:
    found = catch_up.catch_up_width(worker, batch_size, 1)
    assert found == width if width in (1, 15) else 1 < found < 15


def test_flashinfers_plan_for_mla_takes_the_same_space_at_any_width(
    catch_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = draft_worker(128, num_heads=64)
    assert catch_up.catch_up_width(worker, 128, 1) == 1
    monkeypatch.setattr(catch_up, "FlashInferMLAAttnBackend", SimpleNamespace)
    assert catch_up.catch_up_width(worker, 128, 1) == 15
    # Others that derive from it plan in their own ways.
    backend = type("Other", (SimpleNamespace,), {})()
    vars(backend).update(vars(worker.draft_extend_attn_backend))
    worker.draft_extend_attn_backend = backend
    assert catch_up.catch_up_width(worker, 128, 1) == 1


def test_without_graphs_a_part_is_bounded_by_the_logits_of_its_window(catch_up: Any) -> None:
    for vocab_size, width in ((128_256, 15), (32_000, 15), (151_936, 1)):
        size = catch_up.eager_part_size(width, vocab_size)
        assert size * width * vocab_size <= catch_up.MAX_EAGER_LOGITS
        assert (size + 1) * width * vocab_size > catch_up.MAX_EAGER_LOGITS
    assert catch_up.eager_part_size(15, 10**8) == 1


@pytest.mark.parametrize(
    ("graphs", "hot_tokens", "expected"),
    [(object(), None, 256), (None, None, 34), (None, 32_000, 139)],
)
def test_graphs_catch_up_what_they_hold_and_eager_runs_what_its_logits_allow(
    catch_up: Any, graphs: object, hot_tokens: int | None, expected: int
) -> None:
    draft = SimpleNamespace(
        cuda_graph_runner_for_draft_extend=graphs,
        hot_token_id=None if hot_tokens is None else range(hot_tokens),
        draft_runner=SimpleNamespace(model_config=SimpleNamespace(vocab_size=128_256)),
    )
    assert catch_up.catch_up_part_size(draft, 256, 15) == expected


def mixed_batch(num_extend: int, num_decode: int, **changes: Any) -> Any:
    """A mixed batch as far as its decode rows are caught up."""
    size = num_extend + num_decode
    lens = torch.arange(10, 10 + size)
    fields = ("multimodal_inputs", "top_logprobs_nums", "token_ids_logprobs")
    sampling = SimpleNamespace(temperatures=None, top_ks=None, sampling_seed=None)
    batch = SimpleNamespace(
        reqs=list(range(size)),
        decoding_reqs=list(range(num_decode)),
        req_pool_indices=torch.arange(size),
        seq_lens=lens,
        seq_lens_cpu=lens.clone(),
        orig_seq_lens=lens,
        forward_mode="mixed",
        is_extend_in_batch=True,
        global_num_tokens=None,
        replace_embeds=object(),
        sampling_info=sampling,
        **dict.fromkeys(fields),
    )
    vars(batch).update(changes)
    return batch


def test_decode_rows_of_a_mixed_batch_are_caught_up_without_the_token_they_add(
    catch_up: Any,
) -> None:
    batch = mixed_batch(1, 2)
    rows = catch_up.decoding_rows(batch, 1)
    assert rows.reqs == [1, 2]
    assert rows.seq_lens.tolist() == rows.seq_lens_cpu.tolist() == [10, 11]
    assert rows.forward_mode.is_decode()
    assert (rows.is_extend_in_batch, rows.replace_embeds) == (False, None)
    assert (batch.forward_mode, batch.seq_lens.tolist()) == ("mixed", [10, 11, 12])
