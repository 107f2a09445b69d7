"""What a table of what was written drafts: prefixes of its tree, its newest tokens, its tails."""

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

FULL, WIDTH, NUM_ROWS = 8, 3, 2
MASKS = np.random.default_rng(1).random((NUM_ROWS, FULL, FULL)) < 0.5  # no two corners alike


@pytest.fixture
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import ngram_worker

    return ngram_worker


@pytest.fixture
def worker(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker whose host looks up MASKS, nodes numbered row by row."""
    seen: list[int] = []

    def look_up(self: Any, batch: Any) -> Any:
        seen.append(self.draft_token_num)
        return np.arange(len(batch.reqs) * FULL), MASKS.flatten()

    monkeypatch.setattr(module.NGRAMWorker, "_prepare_draft_tokens", look_up)
    worker: Any = object.__new__(module.AdaptiveNgramWorker)
    worker.full_width, worker._is_alone, worker.seen = FULL, False, seen
    return worker


@pytest.mark.parametrize("width", [WIDTH, FULL])
def test_a_tier_verifies_the_first_nodes_of_the_widest_tree(worker: Any, width: int) -> None:
    worker.draft_token_num = width
    drafts, mask = worker._prepare_draft_tokens(SimpleNamespace(reqs=[None] * NUM_ROWS))
    assert worker.seen == [FULL]
    assert worker.draft_token_num == width
    assert drafts.tolist() == [
        row * FULL + node for row in range(NUM_ROWS) for node in range(width)
    ]
    assert (mask.reshape(NUM_ROWS, width, width) == MASKS[:, :width, :width]).all()


def test_a_round_that_nobody_waits_for_asks_no_table(worker: Any) -> None:
    worker.draft_token_num, worker._is_alone = WIDTH, True
    batch = SimpleNamespace(reqs=[None] * NUM_ROWS)
    drafts, mask = worker._prepare_draft_tokens(batch)
    worker._update_ngram_corpus(batch)
    assert worker.seen == []
    assert (len(drafts), len(mask)) == (NUM_ROWS * WIDTH, NUM_ROWS * WIDTH**2)


def test_what_rounds_hand_on_has_the_widest_stride(worker: Any) -> None:
    worker.draft_token_num = WIDTH
    tokens = torch.arange(NUM_ROWS * WIDTH, dtype=torch.int32)
    handed_on = SimpleNamespace(accept_tokens=tokens, draft_token_num=WIDTH)
    worker._hand_on(handed_on)
    rows = handed_on.accept_tokens.view(NUM_ROWS, FULL)
    assert rows[:, :WIDTH].flatten().tolist() == tokens.tolist()
    assert (handed_on.draft_token_num, handed_on.num_tokens_per_req) == (FULL, FULL)
    assert handed_on.accept_tokens.dtype == torch.int32


def test_a_zero_step_round_goes_on_from_the_last_token(module: Any) -> None:
    tokens = torch.tensor([5, 6, 7, 0, 8, 0, 0, 0])
    assert module.newest_tokens(tokens, torch.tensor([3, 1])).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("num_tokens", "tail"), [(2, [4, 5]), (3, [3, 4, 5]), (4, [2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])]
)
def test_a_tail_reaches_back_into_the_prompt(module: Any, num_tokens: int, tail: list[int]) -> None:
    request = SimpleNamespace(origin_input_ids=array("q", [1, 2]), output_ids=array("q", [3, 4, 5]))
    assert module.tail_of(request, num_tokens) == tail


def test_the_table_learns_what_zero_steps_write_now_and_then(module: Any, worker: Any) -> None:
    put: list[Any] = []
    worker.ngram_corpus = SimpleNamespace(batch_put=put.append)
    worker.max_trie_depth, worker._num_unlearned = 4, 0
    request = SimpleNamespace(origin_input_ids=array("q"), output_ids=array("q", range(100)))
    batch = SimpleNamespace(reqs=[request])
    for _ in range(2 * module.LEARN_EVERY):
        worker._learn_now_and_then(batch, 1)
    assert [len(tail) for (tail,) in put] == [4 + module.LEARN_EVERY] * 2
