"""A device with memory to plan with, for tests of the builder."""

from collections.abc import Sequence

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes
from sglang_adaptive_spec.tiers import Tier

CAPTURED = [1, 2, 4, 8, 16, 32, 64, 128]
VOCAB = 128_256


def of_a_draft(tier: Tier) -> int:
    """The forwards of a tier that a model drafts for: verify, draft steps and draft-extend."""
    return tier.num_steps + 2


class FakeHost:
    """A device with so much memory, on which a tier costs what ``cost_gb`` says."""

    def __init__(
        self,
        free_gb: float,
        cost_gb: float,
        other_rank_free_gb: float = 1e9,
        ladder: Ladder | None = None,
        captured: Sequence[int] = CAPTURED,
        max_batch_size: int = 128,
        is_cap_ours: bool = False,
        vocab_size: int = VOCAB,
    ) -> None:
        self.left_gb, self.cost_gb, self.other_rank_free_gb = free_gb, cost_gb, other_rank_free_gb
        self.ladder = ladder or load_config("host-default").ladder
        self.captured, self.max_batch_size = captured, max_batch_size
        self.is_cap_ours, self._vocab_size = is_cap_ours, vocab_size
        self.rank0_says: bool | None = None
        self.built: list[Tier] = []

    def vocab_size(self) -> int:
        return self._vocab_size

    def graph_batch_sizes(self, tier: Tier) -> tuple[int, ...]:
        return tuple(graph_batch_sizes(tier, self.captured, self.ladder, self.max_batch_size))

    def free_gb(self) -> float:
        return self.left_gb

    def min_free_gb(self) -> float:
        return min(self.left_gb, self.other_rank_free_gb)

    def num_penalized(self) -> int:
        return self._num_in_graphs() if self.is_cap_ours else 0

    def lower_cap_size(self) -> int | None:
        largest = self._num_in_graphs()
        return largest if self.is_cap_ours and largest < self.max_batch_size else None

    def lower_cap(self, largest: int) -> None:
        self.max_batch_size = largest

    def agree(self, verdict: bool) -> bool:
        return verdict if self.rank0_says is None else self.rank0_says

    def build(self, tier: Tier) -> tuple[object, ...]:
        self.left_gb -= self.cost_gb
        self.built.append(tier)
        return (tier.num_steps,)

    def leave_out(self, tier: Tier) -> None:
        self.ladder = self.ladder.without([tier])

    def _num_in_graphs(self) -> int:
        return min(max(self.captured), self.max_batch_size)
