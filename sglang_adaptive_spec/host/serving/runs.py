"""Several decodes in one zero-step round: where they may run, and how the host counts them.

A round of k decodes is k rounds for whoever counts verifies, so that accept length and rate stay
those of the drafts (sglang 0.5.23 scheduler_components/batch_result_processor.py,
metrics_reporter.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookType
from sglang.srt.runtime_context import get_serving

from sglang_adaptive_spec.host.hooks import hook_now

RESOLVE = (
    "sglang.srt.managers.scheduler_components.batch_result_processor"
    ".SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
)
UPDATE = (
    "sglang.srt.managers.scheduler_components.metrics_reporter"
    ".SchedulerMetricsReporter.update_spec_metrics"
)


def needs_every_token(batch: Any) -> bool:
    """Returns whether something on the CPU must see each token before the next is drawn.

    That is a grammar, penalties (`min_new_tokens` among them), a custom logit processor. Of
    logprobs, hidden states, routed experts and indexer tokens a result holds one forward's. And a
    run may step over the length at which a stream is due.
    """
    info = batch.sampling_info
    penalties = info.penalizer_orchestrator  # None under the overlap schedule
    return bool(
        batch.has_grammar
        or batch.return_logprob
        or batch.return_hidden_states
        or batch.global_num_tokens is not None  # attention data parallel: ranks run alike
        or info.has_custom_logit_processor
        or info.acc_additive_penalties is not None
        or (penalties is not None and penalties.is_required)
        or _has_one_alone(batch.reqs)
    )


def _has_one_alone(reqs: Sequence[Any]) -> bool:
    usual = get_serving().stream_interval
    return any(
        (req.stream and (req.sampling_params.stream_interval or usual) > 1)
        or req.return_routed_experts
        or req.return_indexer_topk
        for req in reqs
    )


# -- the host's methods, hooked --


def resolve_runs(
    resolve: Callable[..., Any], processor: Any, result: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around _resolve_spec_v2_tokens, which counts a round as one verify of each request."""
    tokens = resolve(processor, result, batch, *args, **kwargs)
    more = result.num_non_draft_tokens_per_req - 1
    if more:
        for req in batch.reqs:
            if not (req.is_retracted or req.finished()):
                req.spec_verify_ct += more
                for _ in range(more):
                    req.update_spec_correct_drafts_histogram(0)
    return tokens


def count_runs(
    update: Callable[..., Any],
    reporter: Any,
    bs: int,
    num_correct_drafts: int,
    num_accept_tokens: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Around update_spec_metrics, likewise: what is no draft came from a verify each."""
    num_verifies = max(bs, num_accept_tokens - num_correct_drafts)
    return update(reporter, num_verifies, num_correct_drafts, num_accept_tokens, *args, **kwargs)


def install_run_hooks() -> None:
    """Hooks what counts verifies; for a process whose zero-step rounds are ours."""
    hook_now([(RESOLVE, resolve_runs, HookType.AROUND), (UPDATE, count_runs, HookType.AROUND)])
