"""The host's own figures of drafts, right while the tier changes and rounds run several decodes.

A round of k decodes is k verifies for whoever counts them, so that accept length and rate stay
those of the drafts. And drafts proposed are counted round by round: the host multiplies verifies by
one depth for all (sglang 0.5.23 scheduler_components/batch_result_processor.py,
metrics_reporter.py, tokenizer_manager.py). They are kept in `spec_num_block_accept_tokens`, which
nothing of EAGLE writes, travels to the tokenizer, and is reset with the others.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_spec

from sglang_adaptive_spec.host.hooks import AFTER, hook_now

RESOLVE = (
    "sglang.srt.managers.scheduler_components.batch_result_processor"
    ".SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
)
UPDATE = (
    "sglang.srt.managers.scheduler_components.metrics_reporter"
    ".SchedulerMetricsReporter.update_spec_metrics"
)
REPORT = (
    "sglang.srt.managers.scheduler_components.metrics_reporter"
    ".SchedulerMetricsReporter.report_decode_stats"
)
SNAPSHOT = (
    "sglang.srt.managers.scheduler_components.metrics_reporter"
    ".SchedulerMetricsReporter._active_spec_config_snapshot"
)


class Counts:
    """Hooks what counts rounds; for the process of a scheduler."""

    def __init__(self) -> None:
        self._num_drafts = 0  # of a request, in the round whose result is being processed

    def install(self) -> None:
        """Hooks the host's methods."""
        hook_now({RESOLVE: resolve, UPDATE: update, REPORT: report})
        hook_now({SNAPSHOT: snapshot}, AFTER)

    def resolve(self, result: Any, batch: Any) -> None:
        """Takes a result that the host has counted as one verify of each request."""
        more = result.num_non_draft_tokens_per_req - 1
        num_drafts = self._num_drafts = (result.speculative_num_draft_tokens or 1) - 1
        if not (num_drafts or more):
            return
        for req in batch.reqs:
            if not (req.is_retracted or req.finished()):
                req.spec_num_block_accept_tokens += num_drafts
                req.spec_verify_ct += more
                for _ in range(more):
                    req.update_spec_correct_drafts_histogram(0)

    def proposed(self, batch_size: int) -> int:
        """Returns the drafts of the round whose result is being processed."""
        return self._num_drafts * batch_size


counts = Counts()


# -- the host's methods, hooked --


def resolve(
    host: Callable[..., Any], processor: Any, result: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around _resolve_spec_v2_tokens, once a decode result."""
    tokens = host(processor, result, batch, *args, **kwargs)
    counts.resolve(result, batch)
    return tokens


def update(
    host: Callable[..., Any],
    reporter: Any,
    bs: int,
    num_correct_drafts: int,
    num_accept_tokens: int,
    **kwargs: Any,
) -> Any:
    """Around update_spec_metrics, right after: what is no draft came from a verify each."""
    num_verifies = max(bs, num_accept_tokens - num_correct_drafts)
    kwargs["num_block_accept_tokens"] = counts.proposed(bs)
    return host(reporter, num_verifies, num_correct_drafts, num_accept_tokens, **kwargs)


def report(host: Callable[..., Any], reporter: Any, *args: Any, **kwargs: Any) -> Any:
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


def snapshot(_result: Any, reporter: Any, *_args: Any, **_kwargs: Any) -> dict[str, int]:
    """After _active_spec_config_snapshot, which reads the start-up tier behind a prefill."""
    tier = reporter.scheduler.draft_worker.controller.decode_tier
    return {"num_steps": tier.num_steps, "num_draft_tokens": tier.num_draft_tokens}
