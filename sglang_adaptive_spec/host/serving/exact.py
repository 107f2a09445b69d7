"""What plain decoding does to every token and SGLang's verify does not.

A request that asks for any of it gets another distribution from a round that verifies drafts than
from a zero-step round: a custom logit processor is not called at all, `min_p` is left out, top-k is
cut before top-p instead of both from the whole distribution, and penalties count once a round
(sglang 0.5.20 to 0.5.23 speculative/eagle_utils.py:eagle_sample). The config key `exact` says for
which of them a batch stays at zero steps.
"""

import logging

from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from sglang_adaptive_spec.config.file import Exact
from sglang_adaptive_spec.host.batch import Batch, Request
from sglang_adaptive_spec.host.serving.runs import has_penalties
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import PLAIN_TIER

logger = logging.getLogger(__name__)


def batch_reason(batch: Batch, exact: Exact) -> str | None:
    """Returns why a decode batch must run zero steps, or None; once a round."""
    info = batch.sampling_info
    if exact == "none":
        return None
    if info.has_custom_logit_processor:
        return "processors"
    if exact == "processors":
        return None
    if has_penalties(info):
        return "penalties"
    if info.is_all_greedy:
        return None
    if info.need_min_p_sampling or (info.need_top_k_sampling and info.need_top_p_sampling):
        return next(filter(None, map(_cut_reason, batch.reqs)), None)
    return None


def request_reason(req: Request, exact: Exact) -> str | None:
    """Returns why a request needs zero-step rounds, or None."""
    if exact == "none":
        return None
    if req.custom_logit_processor is not None:
        return "processors"
    if exact == "processors":
        return None
    params = req.sampling_params
    is_penalised = (
        params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or params.repetition_penalty != 1.0
        or params.min_new_tokens > 0
    )
    return "penalties" if is_penalised else _cut_reason(req)


def _cut_reason(req: Request) -> str | None:
    params = req.sampling_params
    if params.top_k == 1:  # greedy
        return None
    if params.min_p > 0.0:
        return "min_p"
    return "top_k with top_p" if params.top_k != TOP_K_ALL and params.top_p < 1.0 else None


def draws_alike(device: str) -> bool:
    """Returns whether verify draws tokens at a temperature with the target's probabilities.

    It takes the likeliest ones on a CPU, and more drafts than hold where thresholds allow it.
    """
    spec = get_spec()
    thresholds = spec.speculative_accept_threshold_single, spec.speculative_accept_threshold_acc
    return device != "cpu" and min(thresholds) >= 1.0


class ExactRequests:
    """Refuses requests that no round of this server could serve exactly.

    Args:
        exact: The config's key.
        ladder: What batches may run.
        has_plain_rounds: Whether zero-step rounds sample as plain decoding.
        draws_alike: Whether verify draws tokens as plain decoding does (`draws_alike`).
    """

    def __init__(
        self, exact: Exact, ladder: Ladder, has_plain_rounds: bool, draws_alike: bool = True
    ) -> None:
        is_everywhere = all(PLAIN_TIER in tiers for tiers in ladder.ranges.values())
        self.is_possible = has_plain_rounds and is_everywhere
        self.exact: Exact = exact if self.is_possible else "none"  # of rounds
        self._asked, self._draws_alike = exact, draws_alike
        self._lacks, self._fix = (
            (
                "zero steps (0) are not served in every batch-size slot",
                "add 0 to every slot's candidate_steps, and leave memory for it, or ",
            )
            if has_plain_rounds
            else ("the model keeps SGLang's own zero-step round, which verifies", "")
        )

    def warn(self) -> None:
        """Says once what is refused here."""
        if self.is_possible or self._asked == "none":
            return
        if self._asked == "all" or get_exec().features.enable_custom_logit_processor:
            logger.warning("ADAPTIVE_EAGLE refuses requests with %s.", self._refused())

    def own_reason(self, req: Request) -> str | None:
        """Returns why a request that asks for exactness itself needs zero-step rounds, or None."""
        is_drawn = req.sampling_params.top_k != 1 and not self._draws_alike
        return request_reason(req, "all") or ("drawn" if is_drawn else None)

    def refusal(self, req: Request, is_asked: bool = False) -> str | None:
        """Returns the sentence that a request is refused with, or None.

        ``is_asked``: it asks for exactness itself.
        """
        if self.is_possible:
            return None
        reason = self.own_reason(req) if is_asked else request_reason(req, self._asked)
        if reason is None:
            return None
        fix = (
            'remove "exact" from it.'
            if is_asked
            else (
                f'{self._fix}set "exact": "none" in the config to serve such requests as SGLang\'s '
                "verify does."
            )
        )
        return (
            f"The request asks for {NAMES[reason]}, which rounds that verify drafts do not apply "
            f"to every token; allowed: requests without, because {self._lacks}; fix: {fix}"
        )

    def _refused(self) -> str:
        what = "custom logit processors"
        if self._asked == "all":
            what += ", penalties, min_p or top_k with top_p"
        return f"{what}: {self._lacks}"


NAMES = {
    "processors": "a custom logit processor",
    "penalties": "penalties or min_new_tokens",
    "min_p": "min_p",
    "top_k with top_p": "top_k together with top_p",
    "drawn": "exactly drawn tokens",
}
