"""How many requests the scheduler put back for want of memory; the host itself forgets them."""

from typing import Any

from sglang_adaptive_spec.host.hooks import AFTER, hook_now

RETRACT = "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode"


class Retractions:
    """Counts them in the process of a scheduler."""

    def __init__(self) -> None:
        self.total = 0

    def install(self) -> None:
        """Hooks the host's method."""
        hook_now({RETRACT: _count}, AFTER)


retractions = Retractions()


def _count(result: Any, *_args: Any, **_kwargs: Any) -> Any:
    retractions.total += len(result[0])
    return result
