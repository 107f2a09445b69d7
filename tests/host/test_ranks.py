"""Ranks draw the same tokens and hear the same."""

from typing import Any

import torch

from sglang_adaptive_spec.host.ranks import Ranks


class Group:
    """Two ranks that drew different tokens; everyone gets those of the first."""

    world_size = 2
    cpu_group = None

    def __init__(self, first: list[int]) -> None:
        self._first = first
        self._objects: list[Any] = []
        self.num_broadcasts = 0

    def broadcast_object(self, obj: Any, src: int) -> Any:
        assert src == 0
        self._objects.append(obj)
        return self._objects[0]

    def broadcast(self, tokens: torch.Tensor, src: int) -> torch.Tensor:
        assert src == 0
        self.num_broadcasts += 1
        return tokens.copy_(torch.tensor(self._first))


def test_what_is_drawn_is_the_same_on_every_rank() -> None:
    group, tokens = Group([7, 8]), torch.tensor([7, 9])
    ranks = Ranks(group, is_first=False, num_shards=2, attention=group)
    ranks.broadcast_values(tokens)
    assert (tokens.tolist(), group.num_broadcasts) == ([7, 8], 1)
    group.world_size = 1
    ranks.broadcast_values(tokens)
    assert (ranks.are_several, group.num_broadcasts) == (False, 1)


def test_ranks_with_other_requests_draw_their_own_tokens() -> None:
    every, attention, tokens = Group([7, 8]), Group([5, 6]), torch.tensor([7, 9])
    ranks = Ranks(every, is_first=False, num_shards=1, attention=attention, num_replicas=2)
    ranks.broadcast_values(tokens)
    assert (every.num_broadcasts, attention.num_broadcasts) == (0, 1)
    attention.world_size = 1  # nobody shares this rank's requests
    ranks.broadcast_values(tokens)
    assert (attention.num_broadcasts, ranks.are_several) == (1, True)


def test_what_the_first_rank_says_holds_for_all() -> None:
    group = Group([])
    for is_first in (True, False):
        ranks = Ranks(group, is_first, num_shards=2, attention=group)
        assert ranks.broadcast(f"told by {is_first}") == "told by True"
