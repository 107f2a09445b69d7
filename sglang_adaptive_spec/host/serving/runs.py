"""Several decodes in one zero-step round: where they may run."""

from collections.abc import Sequence

from sglang.srt.runtime_context import get_serving

from sglang_adaptive_spec.host.batch import Batch, Request, SamplingInfo


def needs_every_token(batch: Batch) -> bool:
    """Returns whether something on the CPU must see each token before the next is drawn.

    That is a grammar, penalties (`min_new_tokens` among them), a custom logit processor. Of
    logprobs and hidden states a result holds one forward's.
    """
    info = batch.sampling_info
    return bool(
        batch.has_grammar
        or batch.return_logprob
        or batch.return_hidden_states
        or info.has_custom_logit_processor
        or has_penalties(info)
    )


def has_penalties(info: SamplingInfo) -> bool:
    """Returns whether penalties are in force for a batch's sampling."""
    if info.acc_additive_penalties is not None:
        return True
    penalties = info.penalizer_orchestrator  # None under the overlap schedule
    return penalties is not None and penalties.is_required


def shows_every_token(reqs: Sequence[Request]) -> bool:
    """Returns whether some request must be shown every token, so that its rounds run one decode.

    Of routed experts and indexer tokens a result holds one forward's, and a run may step over the
    length at which a stream is due.
    """
    usual = get_serving().stream_interval
    return any(
        (req.stream and (req.sampling_params.stream_interval or usual) > 1)
        or req.return_routed_experts
        or req.return_indexer_topk
        for req in reqs
    )
