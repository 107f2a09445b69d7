"""Puts a seeded walk in the place of the server's policy: another choice in every round.

The walk keeps its own account of what then ran, from what it is told; /server_info shows it as
``e2e_walk``, and what every round of a request accepted as ``e2e_rounds``. A choice to draft while
the draft is behind is to run as a zero-step round instead, where a draft can be behind. A ladder of
one tier stays at it.
"""

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from e2e_plugins.stand_in import StandIn, rids, take_over
from sglang_adaptive_spec.tiers import Plan

SEED = 20


class WalkAllTiers(StandIn):
    """Never chooses the same twice, so that each tier follows each other one."""

    def __init__(self, policy: Any, tiers: Sequence[Any]) -> None:
        super().__init__(policy, tiers)
        self._random = random.Random(SEED)
        self._last: Any = None
        self._launched: deque[Any] = deque()  # chosen for the rounds in flight; None: not asked
        self._ran: Any = None
        self._behind: set[Any] = set()  # requests whose newest round was a zero-step one
        # request id: per round [the tier's name, accepted drafts]
        self.rounds: dict[Any, list[list[Any]]] = defaultdict(list)
        self.account = dict.fromkeys(
            (
                *("rounds", "changes", "plain_chosen", "wrong"),
                *("catch_ups", "needless_catch_ups", "drafted_behind"),
            ),
            0,
        )

    def launch(self) -> None:
        self._launched.append(None)

    def choose(self, _batch: Any) -> Any:
        others = [tier for tier in self._tiers if tier != self._last]
        self._last = self._launched[-1] = self._random.choice(others or self._tiers)
        return Plan(self._last)

    def observe(self, observation: Any) -> None:
        self._policy.observe(observation)
        names = rids(observation.requests)
        for rid, accepted in zip(names, observation.num_correct_drafts, strict=True):
            self.rounds[rid].append([observation.tier.label, accepted])
        chosen, ran = self._launched.popleft(), observation.tier
        if chosen is None:
            self._behind = set(observation.requests) if ran.num_steps == 0 else set()
            return
        account, requests = self.account, set(observation.requests)
        account["rounds"] += 1
        account["changes"] += self._ran not in (None, ran)
        account["plain_chosen"] += chosen.num_steps == 0
        was_behind, self._ran = bool(requests & self._behind), ran
        if chosen.num_steps == 0:
            account["wrong"] += ran != chosen
            self._behind = requests
        elif ran.num_steps == 0:
            account["catch_ups"] += 1
            account["needless_catch_ups"] += not was_behind
            self._behind = set()
        else:
            account["wrong"] += ran != chosen
            account["drafted_behind"] += was_behind
            self._behind = set()


def shown(walk: WalkAllTiers) -> dict[str, Any]:
    """What /server_info says of a walk."""
    return {"e2e_walk": dict(walk.account), "e2e_rounds": dict(walk.rounds)}


def register() -> None:
    take_over(WalkAllTiers, shown)
