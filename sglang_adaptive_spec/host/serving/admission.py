"""What a request sets for itself: read once, when the scheduler queues it, and refused with a 400.

SGLang carries ``custom_params`` of a request's sampling as they are to its scheduler (sglang 0.5.20
to 0.5.23 managers/tokenizer_manager.py:_create_tokenized_object). The process that tokenizes checks
ours first: wrong ones cost the scheduler nothing, and with SGLANG_USE_PICKLE_IPC=0 its messages
could not carry a nested one. Several tokenizer workers run without our hooks; there it refuses.
"""

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from sglang_adaptive_spec.config.file import ConfigError, config_error
from sglang_adaptive_spec.config.request import KEY, SOURCE, RequestSettings, request_settings
from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.host.batch import Request
from sglang_adaptive_spec.host.hooks import hook_now
from sglang_adaptive_spec.host.serving.exact import ExactRequests
from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.tiers import NO_LIMITS

SETTINGS = "_adaptive_spec_settings"  # on a request that has any


class Admission:
    """Lets requests into the scheduler's queue with what holds for them.

    Args:
        config: What clients may set, and what holds if they do not.
        exact: Refuses what no round could serve.
        counters: Where requests are counted.
        deepest: Steps of the deepest tier: a larger limit is none.
    """

    def __init__(
        self, config: AdaptiveConfig, exact: ExactRequests, counters: RoundCounters, deepest: int
    ) -> None:
        self._config, self._exact, self._counters = config, exact, counters
        self._deepest = deepest
        self._has_any = False  # some request had settings

    def install(self) -> None:
        """Hooks the scheduler's queue."""
        hook_now({"Scheduler._add_request_to_queue": self.admit})

    def admit(
        self,
        add: Callable[..., Any],
        scheduler: object,
        req: Request,
        is_retracted: bool = False,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Around _add_request_to_queue: a refused request is answered with a 400."""
        if not is_retracted and req.to_finish is None and not hasattr(req, SETTINGS):
            refusal = self._read(req)
            if refusal is not None:
                self._counters.num_requests["refused"] += 1
                req.set_finish_with_abort(refusal)
        return add(scheduler, req, is_retracted, *args, **kwargs)

    def of(
        self, keys: Sequence[Hashable], reqs: Sequence[Request]
    ) -> tuple[Mapping[Hashable, int], str | None]:
        """Returns the limits of a batch's requests, and why one that asks must run zero steps."""
        limits: dict[Hashable, int] = {}
        reason = None
        if self._has_any:
            for key, req in zip(keys, reqs, strict=True):
                settings: RequestSettings | None = getattr(req, SETTINGS, None)
                if settings is None:
                    continue
                if settings.max_steps is not None and settings.max_steps < self._deepest:
                    limits[key] = settings.max_steps
                if settings.exact:
                    reason = reason or self._exact.own_reason(req)
        return limits or NO_LIMITS, reason

    def _read(self, req: Request) -> str | None:
        """Notes what holds for a request; returns the sentence that it is refused with, if any."""
        try:
            settings = request_settings(req.sampling_params.custom_params, self._config)
        except ConfigError as error:
            return str(error)
        refusal = self._exact.refusal(req, settings.exact)
        decodes = req.sampling_params.max_new_tokens != 0  # else it only fills the prefix cache
        if refusal is None and settings.reasons and decodes:
            for reason in settings.reasons:
                self._counters.num_requests[reason] += 1
            setattr(req, SETTINGS, settings)
            self._has_any = True
        return refusal


def check_request(custom_params: object, config: AdaptiveConfig, static_reason: str | None) -> None:
    """Checks what a client set, in the process that tokenizes.

    Raises:
        ConfigError: It may not, or the server, which serves static, cannot keep it.
    """
    settings = request_settings(custom_params, config)
    if settings.exact and static_reason is not None:
        raise config_error(
            SOURCE,
            f"{KEY}.exact is true, and the server serves one depth ({static_reason})",
            "requests without",
            "remove the key",
        )


def show_settings(
    meta_info: dict[str, Any], manager: Any, rid: str, config: AdaptiveConfig
) -> None:
    """Puts what held for a request beside the figures of its drafts, in the tokenizer's process."""
    state = manager.rid_to_state.get(rid)
    if state is None:
        return
    # Once a part of a stream: nothing is copied.
    params = ChainMap(state.obj.sampling_params or {}, manager.preferred_sampling_params or {})
    settings = request_settings(params.get("custom_params"), config).describe()
    if settings:
        meta_info[KEY] = settings
