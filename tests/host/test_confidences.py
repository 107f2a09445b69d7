"""How sure the draft is: read on the way, and nothing of the host is left changed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.host.drafters.confidences import (
    Confidences,
    reading_extend,
    top_probability,
)

ROWS, STEPS, VOCAB = 12, 4, 50
ALONE: Any = SimpleNamespace(are_several=False)


class Runner:
    """Stands for a draft's model runner: other logits in every forward."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []

    def forward(self, num_rows: int = ROWS) -> Any:
        draws = torch.Generator().manual_seed(len(self.logits))
        self.logits.append(torch.randn((num_rows, VOCAB), generator=draws))
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=self.logits[-1].clone())
        )


def test_each_forward_of_a_draft_tells_of_the_next_draft_and_the_relay_of_the_first() -> None:
    confidences, runner = Confidences(16, STEPS, "cpu", ALONE), Runner()
    first = torch.linspace(0.1, 0.9, ROWS)
    with confidences.reading_draft(runner, first):
        for _ in range(STEPS - 1):
            runner.forward()
    told = confidences.of(ROWS, STEPS)
    assert torch.equal(told[:, 0], first)
    for step, logits in enumerate(runner.logits):
        assert torch.allclose(told[:, step + 1], logits.softmax(-1).max(-1).values)
    assert not confidences.of(16, STEPS)[ROWS:].any()


def test_the_runner_is_as_before_also_after_an_error() -> None:
    confidences, runner = Confidences(16, STEPS, "cpu", ALONE), Runner()
    before = dict(vars(runner))
    with (
        pytest.raises(RuntimeError, match="planted"),
        confidences.reading_draft(runner, torch.ones(ROWS)),
    ):
        raise RuntimeError("planted")
    assert vars(runner) == before
    assert "forward" not in vars(runner)


class Graphs:
    """Stands for the graphs of a draft-extend, which hand over the rows that propose a draft."""

    def execute(self) -> Any:
        return SimpleNamespace(next_token_logits=torch.zeros((ROWS, VOCAB)))


@pytest.mark.parametrize("graphs", [None, Graphs()])
def test_a_draft_extend_tells_in_a_graph_and_without(graphs: Any) -> None:
    draft = SimpleNamespace(draft_runner=Runner(), cuda_graph_runner_for_draft_extend=graphs)
    with reading_extend(draft) as outputs:
        made = graphs.execute() if graphs else draft.draft_runner.forward().logits_output
        made.next_token_logits = made.next_token_logits[:3]  # as the host selects rows in place
    assert [output.next_token_logits.shape for output in outputs] == [(3, VOCAB)]
    for owner in (draft.draft_runner, graphs):
        assert owner is None or not {"forward", "execute"} & set(vars(owner))


@pytest.mark.parametrize(
    ("num_rows", "num_steps", "are_asked"),
    [(16, 2, False), (17, 2, True), (32, STEPS, True), (33, 2, False), (32, STEPS + 1, False)],
)
def test_small_batches_and_those_without_graphs_are_not_asked(
    num_rows: int, num_steps: int, are_asked: bool
) -> None:
    assert Confidences(32, STEPS, "cpu", ALONE).holds(num_rows, num_steps) == are_asked


def test_a_probability_is_that_of_the_likeliest_token() -> None:
    logits = torch.tensor([[0.0, 0.0], [100.0, 0.0], [-50.0, 0.0]])
    assert top_probability(logits).tolist() == [0.5, 1.0, 1.0]


def test_ranks_take_the_first_one_s_lengths_and_confidence() -> None:
    theirs = torch.tensor([[0.9, 0.8, 0.0, 3.0], [0.2, 0.1, 0.0, 1.0]])
    values = torch.zeros((2, STEPS + 1))
    values[:, [0, 1, 2, -1]] = theirs
    ranks: Any = SimpleNamespace(
        are_several=True, broadcast_values=lambda mine: mine.copy_(values[: len(mine)])
    )
    confidences = Confidences(32, STEPS, "cpu", ranks)
    mine = torch.tensor([2, 2])
    agreed = confidences.agreed(mine)
    assert (agreed.tolist(), agreed.dtype) == ([3, 1], mine.dtype)
    assert torch.equal(confidences.of(2, 2), theirs[:, :2])
    confidences.of(2, 2).zero_()
    assert torch.equal(confidences.agreed_of(2, 2), theirs[:, :2])
    assert Confidences(32, STEPS, "cpu", ALONE).agreed(mine) is mine


def test_the_first_rank_tells_its_lengths_behind_its_confidence() -> None:
    told: list[torch.Tensor] = []
    ranks: Any = SimpleNamespace(
        are_several=True, broadcast_values=lambda mine: told.append(mine.clone())
    )
    confidences = Confidences(32, STEPS, "cpu", ranks)
    confidences.of(2, STEPS).fill_(0.5)
    lens = torch.tensor([4, 1])
    assert torch.equal(confidences.agreed(lens), lens)
    assert told[0].tolist() == [[0.5] * STEPS + [4.0], [0.5] * STEPS + [1.0]]
