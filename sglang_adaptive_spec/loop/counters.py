"""Monotone counters of what the rounds did; every rate is derived from them by the reader."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from sglang_adaptive_spec.config.request import REASONS
from sglang_adaptive_spec.tiers import Plan, Tier


class RoundCounters:
    """Counts rounds, drafts and switches. Plain integers, safe to read from another thread."""

    def __init__(self) -> None:
        self.num_rounds: dict[Tier, int] = defaultdict(int)
        # histogram[tier][n]: request-rounds in which exactly n drafts were accepted
        self.histogram: dict[Tier, list[int]] = {}
        self.num_packed: dict[Tier, int] = defaultdict(int)  # rounds that verified lengths
        self.num_unverified: dict[Tier, int] = defaultdict(int)  # drafts of those, over requests
        self.num_runs: dict[int, int] = defaultdict(int)  # zero-step rounds by their decodes
        self.num_cut_runs = 0  # of these, with fewer than planned: a request had ended
        self.num_switches = dict.fromkeys(
            ("policy", "found", "batch_size", "pin", "exact", "context_end"), 0
        )
        self.num_exact_rounds: dict[str, int] = defaultdict(int)  # held at zero steps, by reason
        # Requests with settings of their own, or of the config (config/request.py:REASONS).
        self.num_requests = dict.fromkeys(REASONS, 0)
        self.num_prefill_activations = 0
        self.num_idle_rounds = 0  # forwards without requests, beside other ranks' rounds
        self.num_pins = 0  # commands that pinned a tier or let it go
        self.num_policy_errors = 0
        self.num_disagreements = 0  # rounds that another rank ran otherwise: must stay 0
        self.num_feedback_mismatches = 0

    def count_round(self, plan: Plan, num_correct_drafts: Sequence[int]) -> None:
        """Books one finished round; ``num_correct_drafts`` has one entry per request."""
        tier = plan.tier
        self.num_rounds[tier] += 1
        histogram = self.histogram.get(tier)
        if histogram is None:
            histogram = self.histogram[tier] = [0] * (tier.num_steps + 1)
        if not tier.num_steps:
            self.num_runs[plan.num_decodes] += 1
            histogram[0] += len(num_correct_drafts)
            return
        for num_correct in num_correct_drafts:
            histogram[num_correct] += 1
        if plan.verify_lens is not None:
            self.num_packed[tier] += 1
            windows = len(plan.verify_lens) * tier.num_draft_tokens
            self.num_unverified[tier] += windows - sum(plan.verify_lens)

    def num_request_rounds(self, tier: Tier) -> int:
        """Returns the rounds at ``tier``, each counted once per request."""
        return sum(self.histogram.get(tier, ()))

    def num_proposed_drafts(self, tier: Tier) -> int:
        """Returns the drafts at ``tier`` that the target verified, over requests and rounds."""
        return self.num_request_rounds(tier) * tier.num_drafts - self.num_unverified.get(tier, 0)

    def num_correct_drafts(self, tier: Tier) -> int:
        """Returns the drafts accepted at ``tier``, bonus tokens excluded."""
        return sum(n * count for n, count in enumerate(self.histogram.get(tier, ())))

    def accepted_per_position(self, tier: Tier) -> list[int]:
        """Returns per position d the request-rounds whose first d+1 drafts were all accepted."""
        at_least = list(accumulate(reversed(self.histogram.get(tier, [0]))))[::-1]
        return at_least[1:]
