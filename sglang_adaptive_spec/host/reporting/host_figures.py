"""The host's own figures of drafts, right while the tier changes and rounds run several decodes.

A round of k decodes is k verifies for whoever counts them, so that accept length and rate stay
those of the drafts. And drafts proposed are counted round by round: the host multiplies verifies by
one depth for all (sglang 0.5.23 scheduler_components/batch_result_processor.py,
metrics_reporter.py, tokenizer_manager.py). They are kept in `spec_num_block_accept_tokens`, which
nothing of EAGLE writes, travels to the tokenizer, and is reset with the others.

The host forgets how many requests it put back for want of memory; they are counted, too. And it
alone knows when it is idle.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.runtime_context import get_spec

from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.hooks import AFTER, hook_now
from sglang_adaptive_spec.tiers import Tier

# On the result of a packed round: drafts of each row that were verified (packed_round.py).
KEPT = "_adaptive_spec_kept"
RATE = "spec_accept_rate"
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts")  # 0.5.20 has both names


class HostFigures:
    """Counts for the process of a scheduler."""

    def __init__(self, tier_in_force: Callable[[], Tier]) -> None:
        """Takes what returns the tier of the newest decode round."""
        self._tier_in_force = tier_in_force
        self._num_proposed = 0  # drafts of all requests in the round whose result is processed
        self.num_retractions = 0

    def install(self, tell_idle: Callable[[], None]) -> None:
        """Hooks the host's methods; ``tell_idle`` is called where nothing is left to run."""
        hook_now(
            {
                "Scheduler.on_idle": around_idle(tell_idle),
                "SchedulerBatchResultProcessor._resolve_spec_v2_tokens": self.resolve,
                "SchedulerMetricsReporter.update_spec_metrics": self.update,
                "SchedulerMetricsReporter.report_decode_stats": report,
            }
        )
        hook_now(
            {
                "SchedulerMetricsReporter._active_spec_config_snapshot": self.snapshot,
                "ScheduleBatch.retract_decode": self.count_retracted,
            },
            AFTER,
        )

    def resolve(
        self,
        host: Callable[..., Any],
        processor: object,
        result: Any,
        batch: Batch,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Around _resolve_spec_v2_tokens, once a decode result: one verify of each request."""
        tokens = host(processor, result, batch, *args, **kwargs)
        more = result.num_non_draft_tokens_per_req - 1
        num_drafts = (result.speculative_num_draft_tokens or 1) - 1
        kept: Callable[[], Sequence[int]] | None = getattr(result, KEPT, None)
        by_row = [num_drafts] * len(batch.reqs) if kept is None else kept()
        self._num_proposed = sum(by_row)
        if num_drafts or more:
            for req, proposed in zip(batch.reqs, by_row, strict=True):
                if not (req.is_retracted or req.finished()):
                    req.spec_num_block_accept_tokens += proposed
                    req.spec_verify_ct += more
                    for _ in range(more):
                        req.update_spec_correct_drafts_histogram(0)
        return tokens

    def update(
        self,
        host: Callable[..., Any],
        reporter: object,
        bs: int,
        num_correct_drafts: int,
        num_accept_tokens: int,
        **kwargs: object,
    ) -> Any:
        """Around update_spec_metrics, right after: what is no draft came from a verify each."""
        num_verifies = max(bs, num_accept_tokens - num_correct_drafts)
        kwargs["num_block_accept_tokens"] = self._num_proposed
        return host(reporter, num_verifies, num_correct_drafts, num_accept_tokens, **kwargs)

    def snapshot(self, *_args: object, **_kwargs: object) -> dict[str, int]:
        """After _active_spec_config_snapshot, which reads the start-up tier behind a prefill."""
        tier = self._tier_in_force()
        return {"num_steps": tier.num_steps, "num_draft_tokens": tier.num_draft_tokens}

    def count_retracted(self, result: Any, *_args: object, **_kwargs: object) -> Any:
        """After retract_decode, which returns the requests that it put back first."""
        self.num_retractions += len(result[0])
        return result


def around_idle(tell: Callable[[], None]) -> Callable[..., Any]:
    """Returns what goes around on_idle: ``tell`` is called before, as the host may sleep in it."""

    def on_idle(host: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        tell()
        return host(*args, **kwargs)

    return on_idle


def report(host: Callable[..., Any], reporter: Any, *args: object, **kwargs: object) -> Any:
    """Around report_decode_stats, which divides by verifies times the largest tier's drafts.

    So it finds as many accepted drafts as give the rate of those proposed. It forgets them where it
    reports, which is once in many rounds.
    """
    correct, proposed = reporter.spec_num_correct_drafts, reporter.spec_num_block_accept_tokens
    assumed = reporter.spec_num_forward_ct * ((get_spec().speculative_num_draft_tokens or 1) - 1)
    reporter.spec_num_correct_drafts = correct * assumed / proposed if proposed else 0
    try:
        return host(reporter, *args, **kwargs)
    finally:
        if reporter.spec_num_forward_ct:  # not reported: the interval goes on
            reporter.spec_num_correct_drafts = correct


def set_accept_rate(meta_info: dict[str, Any], answer: Any, place: int) -> None:
    """Puts the drafts that were proposed where the host put verifies times the largest tier's.

    Runs in the tokenizer's process.

    Args:
        meta_info: of the request; as the host filled it.
        answer: of the scheduler, for several requests.
        place: of the request among them.
    """
    if PROPOSED[0] not in meta_info or not answer.spec_num_block_accept_tokens:
        return
    proposed = answer.spec_num_block_accept_tokens[place]
    for name in meta_info.keys() & set(PROPOSED):
        meta_info[name] = proposed
    meta_info[RATE] = answer.spec_num_correct_drafts[place] / proposed if proposed else 0.0
