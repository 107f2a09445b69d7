"""What the user asked for, attached to the host's ServerArgs and carried into every process.

The host pickles ServerArgs, bookkeeping attributes included, into its child processes. Unpickling
this record registers the plugin there (plugin.py:restore), so no child can serve without it,
whatever SGLANG_PLUGINS says; where that fails, the child dies and the server never becomes ready.
"""

from dataclasses import dataclass

from sglang_adaptive_spec.config.schema import AdaptiveConfig
from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.host.sizes import STAGES, Stages
from sglang_adaptive_spec.tiers import Tier

ALGORITHM = "ADAPTIVE_EAGLE"
ATTRIBUTE = "_adaptive_spec"  # on ServerArgs: an underscore attribute is bookkeeping to the host


@dataclass(frozen=True)
class AdaptiveOptions:
    """What was asked for, resolved: adaptive, or static with the reason why."""

    config: AdaptiveConfig
    base: str  # the host's algorithm: EAGLE, EAGLE3, STANDALONE or NGRAM
    initial_steps: int | None  # None: the user gave none, and the server is static
    static_reason: str | None = None
    is_cap_raised: bool = False  # more requests may run than the host lets speculation have
    most_tokens: int | None = None  # of a rank in a round, as far as experts limit them
    larger_sizes: tuple[int, ...] = ()  # decoded with graphs at zero steps, beyond the host's list

    @property
    def mode(self) -> str:
        """``adaptive`` or ``static``, as /server_info shows it."""
        return "adaptive" if self.static_reason is None else "static"

    @property
    def starting_steps(self) -> int:
        """Where a policy starts, on an adaptive server."""
        assert self.initial_steps is not None, "resolution set it"
        return self.initial_steps

    @property
    def stages(self) -> Stages:
        """Which forwards a tier has beside the verify."""
        return STAGES[self.base]

    @property
    def startup_tier(self) -> Tier:
        """The largest tier: the host sizes its buffers and reserves by it."""
        return self.config.largest_tier


def options_of(server_args: ServerArgs) -> AdaptiveOptions | None:
    """Returns the options that ``server_args`` carries, or None when not asked for."""
    return getattr(server_args, ATTRIBUTE, None)
