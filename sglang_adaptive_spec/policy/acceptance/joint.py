"""What the batches of several ranks are expected to accept together.

With attention data parallelism every rank has requests of its own and learns from them alone. To
choose one tier for all it takes each rank's sums over its batch, a `Share`: expected tokens add up,
and noise follows from a share as if its requests were alike.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sglang_adaptive_spec.policy.acceptance.hazards import Floats, PooledHazards
from sglang_adaptive_spec.policy.acceptance.model import AcceptanceModel
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.tiers import Tier

NUM_SCALARS = 5  # of a share, before what it has per position


def share_width(max_steps: int) -> int:
    """Returns how many numbers a share has."""
    return NUM_SCALARS + 3 * max_steps


class Share(NamedTuple):
    """What a rank tells of its batch; totals only grow, so that a missed one is not lost."""

    num_requests: int
    num_ended: int  # that ever left its batches
    num_tokens: int  # that rounds ever gave
    num_changes: int  # of its acceptance
    offset_variance: float  # squared standard error of a request's offset, their mean
    survival: Floats  # [max_steps] requests whose first d drafts are expected to hold
    evidence: Floats  # [max_steps] request-rounds that reached a position
    variance: Floats  # [max_steps] squared standard error of the pool's logits

    def numbers(self) -> Floats:
        """Returns it as one vector: [share_width]."""
        scalars = np.array(self[:NUM_SCALARS], np.float64)
        return np.concatenate((scalars, self.survival, self.evidence, self.variance))


class JointAcceptance(AcceptanceModel):
    """Learns from this rank's rounds; answers for the batches of all ranks, chains only."""

    def __init__(self, max_steps: int, settings: Settings = DEFAULTS) -> None:
        super().__init__(max_steps, (), settings)
        assert isinstance(self.pool, PooledHazards), "there are no trees"
        self.chains = self.pool
        none = np.zeros(max_steps)
        self.shares = _Sums(np.zeros((1, NUM_SCALARS)), *(none[None] for _ in range(3)))
        self._idle = np.zeros(share_width(max_steps))

    def own_share(
        self, requests: Sequence[Hashable], num_ended: int = 0, num_tokens: int = 0
    ) -> Share:
        """Returns the share of this rank's ``requests``."""
        self._predict(requests)
        survival = self._survival @ np.ones(len(requests))
        offsets = self.offsets.variance.take(self._answer_rows)
        return Share(
            len(requests),
            num_ended,
            num_tokens,
            super().num_changes,
            float(offsets.mean()) if len(requests) else 0.0,
            survival,
            self.chains.evidence.copy(),
            self.chains.variance(),
        )

    def idle_share(self, num_ended: int, num_tokens: int) -> Floats:
        """Returns the numbers of this rank's share while it has no requests.

        The next call overwrites them.
        """
        idle = self._idle
        idle[1], idle[2], idle[3] = num_ended, num_tokens, super().num_changes
        return idle

    def take(self, shares: Floats) -> None:
        """Takes what every rank told: [ranks, share_width] (`Share.numbers`)."""
        scalars, per_position = shares[:, :NUM_SCALARS], shares[:, NUM_SCALARS:]
        self.shares = _Sums(scalars, *np.split(per_position, 3, axis=1))

    @property
    def num_changes(self) -> int:
        """Changes that any rank found."""
        return int(self.shares.scalars[:, 3].sum())

    def expected_tokens(self, requests: Sequence[Hashable], tiers: Sequence[Tier]) -> Floats:
        """Returns the tokens of a round of all ranks: [num_tiers]; ``requests`` are all of them."""
        expected = np.cumsum((len(requests), *self.shares.survival.sum(axis=0)))
        tokens: Floats = expected[[tier.num_steps for tier in tiers]]
        return tokens

    def most_tokens(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns the tokens of a round in the most favourable case that is not ruled out."""
        known = self.shares.survival.sum(axis=0)[:depth]
        reaching = known[-1] if depth else len(requests)
        hazard = self._settings.optimistic_hazard
        beyond = hazard ** np.arange(1, tier.num_steps - depth + 1)
        return float(len(requests) + known.sum() + reaching * beyond.sum())

    def reaching(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns how many requests' first ``depth`` drafts hold in a round of ``tier``."""
        del tier
        return float(self.shares.survival[:, depth - 1].sum()) if depth else float(len(requests))

    def noise_beyond(self, requests: Sequence[Hashable], tier: Tier, depth: int) -> float:
        """Returns the standard error of what ``tier`` accepts deeper than ``depth``."""
        if tier.num_steps <= depth or not requests:
            return 0.0
        return self.shares.noise(tier.num_steps, depth)

    def age(self, position: int) -> float:
        """Returns the discounted request-rounds that reached a position on any rank."""
        return float(self.shares.evidence[:, position - 1].sum())

    def limit(self, limits: Mapping[Hashable, int]) -> None:
        """Takes no notice: each rank does so for a batch of its own (`limit_own`)."""

    def limit_own(self, limits: Mapping[Hashable, int]) -> None:
        """Counts no more than so many drafts of these requests in this rank's share."""
        super().limit(limits)

    def shorten_memory(self) -> None:
        """Takes no notice: each rank does so for a batch of its own (`forget_earlier`)."""

    def forget_earlier(self) -> None:
        """Lets a batch of new requests on this rank outweigh what earlier ones showed."""
        super().shorten_memory()

    def describe(self) -> dict[str, Any]:
        """Returns what this rank knows, beside the requests of all, for /server_info."""
        return {**super().describe(), "num_requests": int(self.shares.scalars[:, 0].sum())}


class _Sums(NamedTuple):
    """The shares of all ranks, one row each."""

    scalars: Floats  # [ranks, NUM_SCALARS]
    survival: Floats  # [ranks, max_steps]
    evidence: Floats
    variance: Floats

    def noise(self, num_steps: int, depth: int) -> float:
        """Returns the standard error of the tokens at positions from ``depth`` to num_steps."""
        survival = self.survival[:, :num_steps]
        num_requests = np.maximum(self.scalars[:, :1], 1.0)
        reached = np.concatenate((num_requests, survival[:, :-1]), axis=1)
        hazards = survival / np.maximum(reached, 1e-9)
        tail = survival.copy()
        tail[:, :depth] = 0.0
        tail = np.cumsum(tail[:, ::-1], axis=1)[:, ::-1]  # what draft i carries
        slope = tail * (1.0 - hazards)
        pooled = slope**2 * self.variance[:, :num_steps]
        by_request = slope.sum(axis=1) ** 2 * self.scalars[:, 4] / num_requests[:, 0]
        return float(np.sqrt(pooled.sum() + by_request.sum()))
