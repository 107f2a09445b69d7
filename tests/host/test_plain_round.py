"""Which models keep the host's zero-step round, and what zero-step rounds know of first drafts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig


def runner(**changes: Any) -> Any:
    """A target's model runner, as far as it is asked; ``changes`` by attribute."""
    model_config = SimpleNamespace(
        hf_config=LlamaConfig(), is_encoder_decoder=False, linear_attn_registry_result=None
    )
    model_runner = SimpleNamespace(
        model_config=model_config,
        hisparse_coordinator=None,
        ngram_embedding_manager=SimpleNamespace(enabled=False),
    )
    for name, value in changes.items():
        owner, _, leaf = name.rpartition("__")
        setattr(getattr(model_runner, owner) if owner else model_runner, leaf, value)
    return model_runner


@pytest.fixture(scope="module")
def plain_round(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import plain_round

    return plain_round


def test_an_ordinary_model_has_plain_rounds(plain_round: Any) -> None:
    assert plain_round.plain_round_unsupported_reason(runner()) is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"hisparse_coordinator": object()}, "HiSparse"),
        ({"ngram_embedding_manager": SimpleNamespace(enabled=True)}, "n-gram"),
    ],
)
def test_what_the_scheduler_prepares_keeps_the_hosts_round(
    plain_round: Any, changes: dict[str, Any], word: str
) -> None:
    assert word in plain_round.plain_round_unsupported_reason(runner(**changes))


def test_a_model_with_recurrent_state_keeps_the_hosts_round(plain_round: Any) -> None:
    from sglang.srt.configs.falcon_h1 import FalconH1Config

    recurrent = FalconH1Config()
    model_runner = runner(model_config__hf_config=recurrent)
    assert "recurrent" in plain_round.plain_round_unsupported_reason(model_runner)


def test_first_drafts_are_told_only_where_the_draft_was_current(plain_round: Any) -> None:
    firsts = plain_round.FirstDrafts(torch.tensor([True, True, False]), [True, False, True])
    assert firsts.read() == [True, None, False]


@pytest.mark.parametrize(
    ("hot_token_id", "expected"),
    [(None, [True, False, False]), (torch.tensor([7, 1, 2, 3, 4, 9]), [False, True, True])],
)
def test_a_first_draft_is_compared_in_the_targets_vocabulary(
    plain_round: Any, hot_token_id: torch.Tensor | None, expected: list[bool]
) -> None:
    worker = SimpleNamespace(draft_worker=SimpleNamespace(hot_token_id=hot_token_id))
    drafts, tokens = torch.tensor([0, 5, 1]), torch.tensor([0, 9, 1])
    if hot_token_id is None:
        tokens = torch.tensor([0, 9, 2])
    assert plain_round.first_draft_correct(worker, drafts, tokens).tolist() == expected


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
    plain_round: Any, monkeypatch: pytest.MonkeyPatch, worker: Any, batch_size: int, width: int
) -> None:
    monkeypatch.setattr(plain_round, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    found = plain_round.catch_up_width(worker, batch_size)
    assert found == width if width in (1, 15) else 1 < found < 15


def test_flashinfers_plan_for_mla_takes_the_same_space_at_any_width(
    plain_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_round, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    worker = draft_worker(128, num_heads=64)
    assert plain_round.catch_up_width(worker, 128) == 1
    monkeypatch.setattr(plain_round, "FlashInferMLAAttnBackend", SimpleNamespace)
    assert plain_round.catch_up_width(worker, 128) == 15
    # Others that derive from it plan in their own ways.
    backend = type("Other", (SimpleNamespace,), {})()
    vars(backend).update(vars(worker.draft_extend_attn_backend))
    worker.draft_extend_attn_backend = backend
    assert plain_round.catch_up_width(worker, 128) == 1


def test_without_graphs_a_part_is_bounded_by_the_logits_of_its_window(plain_round: Any) -> None:
    for vocab_size, width in ((128_256, 15), (32_000, 15), (151_936, 1)):
        size = plain_round.eager_part_size(width, vocab_size)
        assert size * width * vocab_size <= plain_round.MAX_EAGER_LOGITS
        assert (size + 1) * width * vocab_size > plain_round.MAX_EAGER_LOGITS
    assert plain_round.eager_part_size(15, 10**8) == 1


@pytest.mark.parametrize(
    ("graphs", "hot_tokens", "expected"),
    [(object(), None, 256), (None, None, 34), (None, 32_000, 139)],
)
def test_graphs_catch_up_what_they_hold_and_eager_runs_what_its_logits_allow(
    plain_round: Any, graphs: object, hot_tokens: int | None, expected: int
) -> None:
    draft = SimpleNamespace(
        cuda_graph_runner_for_draft_extend=graphs,
        hot_token_id=None if hot_tokens is None else range(hot_tokens),
        draft_runner=SimpleNamespace(model_config=SimpleNamespace(vocab_size=128_256)),
    )
    assert plain_round.catch_up_part_size(draft, 256, 15) == expected


class Group:
    """Two ranks that drew different tokens; everyone gets those of the first."""

    world_size = 2

    def __init__(self, first: list[int]) -> None:
        self._first = first
        self.num_broadcasts = 0

    def broadcast(self, tokens: torch.Tensor, src: int) -> None:
        assert src == 0
        self.num_broadcasts += 1
        tokens.copy_(torch.tensor(self._first))


def test_what_is_drawn_is_the_same_on_every_rank(
    plain_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, tokens = Group([7, 8]), torch.tensor([7, 9])
    monkeypatch.setattr(plain_round, "get_parallel", lambda: SimpleNamespace(tp_group=group))
    plain_round.take_first_ranks(tokens)
    assert (tokens.tolist(), group.num_broadcasts) == ([7, 8], 1)
    group.world_size = 1
    plain_round.take_first_ranks(tokens)
    assert group.num_broadcasts == 1


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


def behind(plain_round: Any, *requests: str) -> Any:
    """Zero-step rounds after which the draft lacks a token of ``requests``, and had eight."""
    rounds = object.__new__(plain_round.PlainRounds)
    rounds.schedule = plain_round.CatchUpSchedule(8)
    rounds.prefixes = plain_round.DraftPrefixes()
    rounds.schedule.add_round(requests, is_last=False)
    reqs = [SimpleNamespace(kv=SimpleNamespace(kv_committed_len=8)) for _ in requests]
    rounds.fall_behind(SimpleNamespace(reqs=reqs), requests)
    return rounds


def test_decode_rows_of_a_mixed_batch_are_caught_up_without_the_token_they_add(
    plain_round: Any,
) -> None:
    batch = mixed_batch(1, 2)
    rounds = behind(plain_round, "b", "c")
    assert rounds.owes_before_mixed(batch, ("a", "b", "c"), 1)
    rows = plain_round.decoding_rows(batch, 1)
    assert rows.reqs == [1, 2]
    assert rows.seq_lens.tolist() == rows.seq_lens_cpu.tolist() == [10, 11]
    assert rows.forward_mode.is_decode()
    assert (rows.is_extend_in_batch, rows.replace_embeds) == (False, None)
    assert (batch.forward_mode, batch.seq_lens.tolist()) == ("mixed", [10, 11, 12])


@pytest.mark.parametrize(
    ("owing", "changes", "has_gap"),
    [
        ("gone", {}, False),
        ("a", {}, False),  # a name that came back: it is prefilled anew
        ("b", {"global_num_tokens": [99]}, True),  # padded for experts: the gap stays
    ],
)
def test_no_other_rows_of_a_mixed_batch_are_caught_up(
    plain_round: Any, owing: str, changes: dict[str, Any], has_gap: bool
) -> None:
    rounds, batch = behind(plain_round, owing), mixed_batch(1, 2, **changes)
    assert not rounds.owes_before_mixed(batch, ("a", "b", "c"), 1)
    assert not rounds.schedule.is_behind(("a", "b", "c"))
    rounds.prefixes.catch_up((owing,), (1,), width=8)  # what comes later closes no gap
    assert rounds.prefixes.end(owing, 20, 12, 4) == (8 if has_gap else 20)
