"""Adapters: what decode graphs read of a batch is a tier's own, what expert layers share stays."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.runtime.pool import read_places

pytestmark = pytest.mark.usefixtures("plugins_loaded")


class Backend:
    """As the host's: a runner's metadata, and buffers that all share."""

    def __init__(self) -> None:
        self.moe_cg_buffers = {"tokens": "for the largest tier"}


class Manager:
    def __init__(self) -> None:
        self.lora_backend = Backend()

    def init(self, size: int) -> str:
        """As the host's from 0.5.21 on: empties the buffers, and makes smaller ones."""
        self.lora_backend.moe_cg_buffers.clear()
        self.lora_backend.moe_cg_buffers = {"tokens": f"for {size}"}
        return "made"


def test_a_runner_leaves_the_buffers_of_expert_layers_to_the_graphs_before_it() -> None:
    from sglang_adaptive_spec.host.startup.lora import keep_moe_buffers

    manager = Manager()
    buffers = manager.lora_backend.moe_cg_buffers
    assert keep_moe_buffers(Manager.init, manager, 8) == "made"
    assert manager.lora_backend.moe_cg_buffers is buffers
    assert buffers == {"tokens": "for the largest tier"}


def test_without_expert_layers_nothing_is_kept() -> None:
    from sglang_adaptive_spec.host.startup.lora import keep_moe_buffers

    manager: Any = SimpleNamespace(lora_backend=SimpleNamespace())
    assert keep_moe_buffers(lambda _manager, size: size, manager, 8) == 8
    assert vars(manager.lora_backend) == {}


def test_what_graphs_read_of_a_batch_changes_with_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_adaptive_spec.host.startup import lora

    hooked: list[str] = []
    monkeypatch.setattr(lora, "hook_now", hooked.extend)
    backend = SimpleNamespace()
    manager = SimpleNamespace(lora_backend=backend)
    places = lora.lora_places(SimpleNamespace(lora_manager=manager))  # type: ignore[arg-type]
    assert read_places(places) == (None, None, 0)  # nothing is captured, so no batch has graphs
    backend.cuda_graph_batch_info = "of a runner"
    assert read_places(places) == ("of a runner", None, 0)
    assert len(hooked) == 1

    assert lora.lora_places(SimpleNamespace(lora_manager=None)) == ()  # type: ignore[arg-type]
    assert len(hooked) == 1  # a server without adapters hooks nothing
