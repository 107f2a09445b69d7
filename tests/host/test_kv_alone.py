"""Draft-extends that end with the draft's KV: what runs, what the host gets, what is put back."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@dataclass(frozen=True)
class Key:
    """A key of a graph, as the host's ``ShapeKey``."""

    size: int
    variant_label: str | None = None


class Graphs:
    """Captures what a forward calls, and runs it again."""

    def __init__(self, ran: list[str]) -> None:
        self.ran, self.captured = ran, {}

    def capture_one(self, key: Key, forward: Callable[[], Any], **kwargs: object) -> None:
        before = len(self.ran)
        forward()
        self.captured[key] = self.ran[before:]

    def replay(self, key: Key, forward_batch: object) -> list[str]:
        return self.captured[key]

    def can_run(self, key: Key) -> bool:
        return key in self.captured


@pytest.fixture
def draft(plugins_loaded: None) -> Any:
    """A draft of two layers, each an attention and an MLP; ``ran`` has what ran."""
    from sglang.srt.layers.radix_attention import RadixAttention

    ran: list[str] = []

    class Attention(RadixAttention):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            ran.append(f"attention {self.layer_id}")
            return hidden

    class Mlp(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            ran.append("mlp")
            return hidden

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"num_heads": 1, "head_dim": 4, "scaling": 1.0, "num_kv_heads": 1}
            attention = [Attention(**sizes, layer_id=idx) for idx in range(2)]
            self.layers = torch.nn.Sequential(attention[0], Mlp(), attention[1], Mlp())

        def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
            return self.layers(input_ids)

    runner = SimpleNamespace(backend=Graphs(ran))
    return SimpleNamespace(
        ran=ran,
        device="cpu",
        draft_runner=SimpleNamespace(model=Model()),
        cuda_graph_runner_for_draft_extend=runner,
    )


WHOLE = ["attention 0", "mlp", "attention 1", "mlp"]
IDS, POSITIONS = torch.arange(6), torch.arange(6)


def test_a_forward_ends_behind_the_last_attention_and_is_whole_again_afterwards(draft: Any) -> None:
    from sglang_adaptive_spec.host.drafters.kv_alone import writing_kv_alone

    model, draft.cuda_graph_runner_for_draft_extend = draft.draft_runner.model, None
    with writing_kv_alone(draft):
        output = model(IDS, POSITIONS)
    assert draft.ran == WHOLE[:3]
    select_index = torch.tensor([2, 5])  # what the host does with it (eagle_worker_v2.py)
    assert output.next_token_logits[select_index].argmax(dim=-1).tolist() == [0, 0]
    assert output.hidden_states[select_index].shape[0] == 2
    draft.ran.clear()
    assert model(IDS, POSITIONS) is IDS
    assert draft.ran == WHOLE
    assert "forward" not in vars(model)


def test_what_fails_on_the_way_is_told_and_nothing_stays(draft: Any) -> None:
    from sglang_adaptive_spec.host.drafters.kv_alone import writing_kv_alone

    model, graphs = draft.draft_runner.model, draft.cuda_graph_runner_for_draft_extend.backend
    with pytest.raises(TypeError), writing_kv_alone(draft):
        model(IDS)  # without positions
    assert "forward" not in vars(model)
    assert draft.cuda_graph_runner_for_draft_extend.backend is graphs


def test_graphs_come_in_pairs_and_each_kind_of_catch_up_runs_its_own(draft: Any) -> None:
    from sglang_adaptive_spec.host.drafters.kv_alone import pairs_of_graphs, writing_kv_alone

    runner, model = draft.cuda_graph_runner_for_draft_extend, draft.draft_runner.model
    with pairs_of_graphs(draft, runner):
        runner.backend.capture_one(Key(4), lambda: model.forward(IDS, POSITIONS), hook=None)
    assert runner.backend.captured == {Key(4): WHOLE, Key(4, "kv"): WHOLE[:3]}
    with writing_kv_alone(draft):
        assert runner.backend.replay(Key(4), None) == WHOLE[:3]
        assert runner.backend.can_run(Key(4))
    assert runner.backend.replay(Key(4), None) == WHOLE


def test_a_draft_without_graphs_ends_early_all_the_same(draft: Any) -> None:
    from sglang_adaptive_spec.host.drafters.kv_alone import writing_kv_alone

    draft.cuda_graph_runner_for_draft_extend = None
    with writing_kv_alone(draft):
        draft.draft_runner.model.forward(IDS, POSITIONS)
    assert draft.ran == WHOLE[:3]


def test_a_draft_without_attention_runs_whole(draft: Any) -> None:
    from sglang_adaptive_spec.host.drafters.kv_alone import writing_kv_alone

    draft.draft_runner.model.layers = torch.nn.Identity()
    with writing_kv_alone(draft):
        assert draft.draft_runner.model(IDS, POSITIONS) is IDS
