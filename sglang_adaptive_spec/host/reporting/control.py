"""What an operator tells a running server: through the host's /set_internal_state, on every rank.

The host hands a request to all ranks before the same round, and lets it carry numbers alone. So a
tier is named by its place among the tiers of /server_info.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.managers.io_struct import SetInternalStateReqOutput

from sglang_adaptive_spec.host.server_args import Scheduler
from sglang_adaptive_spec.loop.commands import PIN, SHOW_MINUTES
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.minutes import MOST_MINUTES
from sglang_adaptive_spec.runtime.pool import RuntimePool

logger = logging.getLogger(__name__)

# A choice: whoever asked reads /server_info at once; others may get the minutes, too, in between.
SHOWN_S = 10.0


class Control:
    """Obeys commands on one rank."""

    def __init__(self, pool: RuntimePool, controller: AdaptiveController) -> None:
        self._pool, self._controller = pool, controller
        self._num_minutes, self._shown_until_s = 0, 0.0

    def obey(self, commands: Mapping[str, float]) -> bool:
        """Returns whether all of ``commands`` could be obeyed; if not, none was."""
        tiers = [state.tier for state in self._pool.states]
        allowed = {PIN: range(-1, len(tiers)), SHOW_MINUTES: range(1, MOST_MINUTES + 1)}
        # Any number may come, NaN included, and an error here would end the server.
        if any(value not in allowed.get(key, ()) for key, value in commands.items()):
            logger.warning("ADAPTIVE_EAGLE was told %s; allowed: %s.", dict(commands), allowed)
            return False
        if PIN in commands:
            place = int(commands[PIN])
            self._controller.pin(tiers[place] if place >= 0 else None)
        if SHOW_MINUTES in commands:
            self._num_minutes = int(commands[SHOW_MINUTES])
            self._shown_until_s = time.monotonic() + SHOWN_S
        return True

    def minutes(self) -> list[str] | None:
        """Returns the minutes as JSON while they are shown."""
        if time.monotonic() > self._shown_until_s or self._controller.minutes is None:
            return None
        return self._controller.minutes.rows(self._num_minutes)


def set_internal_state(
    host: Callable[..., Any], scheduler: Scheduler, request: Any, *args: object, **kwargs: object
) -> Any:
    """Obeys what is for this plugin; anything else is the host's."""
    values: Mapping[str, float] = request.server_args
    if not values.keys() & {PIN, SHOW_MINUTES}:
        return host(scheduler, request, *args, **kwargs)
    control: Control | None = getattr(scheduler.draft_worker, "control", None)
    if control is None:
        logger.warning("ADAPTIVE_EAGLE serves a static depth here and takes no commands.")
    return SetInternalStateReqOutput(updated=control is not None and control.obey(values))
