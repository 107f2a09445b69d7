"""What a client may set for its own request: ``custom_params["adaptive_spec"]``.

A wrong value is one sentence, as in a config file, and the request's 400.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang_adaptive_spec.config.file import MAX_STEPS, closest, config_error, shown
from sglang_adaptive_spec.config.schema import AdaptiveConfig

KEY = "adaptive_spec"  # among the host's custom_params
ALLOWED = {
    "max_steps": f"a whole number from 0 to {MAX_STEPS}, or null for what the server sets",
    "exact": "true, false or null",
}
SOURCE = "sampling_params.custom_params"
# Of the requests that set something: a limit in force, the config's own, exactness, a limit without
# effect here, and what no round could serve.
REASONS = ("max_steps", "default", "exact", "ignored", "refused")


class RequestSettings(NamedTuple):
    """What holds for a request."""

    max_steps: int | None = None  # drafts a round that count for it; None: all
    exact: bool = False  # its rounds have the distribution of no speculation
    reasons: tuple[str, ...] = ()  # what is counted, of `REASONS`

    def describe(self) -> dict[str, object]:
        """Returns it for ``meta_info``; empty if nothing was set."""
        of_all = {"max_steps": self.max_steps, "exact": self.exact or None}
        return {name: value for name, value in of_all.items() if value is not None}


def request_settings(custom_params: object, config: AdaptiveConfig) -> RequestSettings:
    """Returns what holds for a request with these ``custom_params`` on a server of ``config``.

    A limit is a wish: where clients may not set one it is counted and has no effect. Exactness is a
    promise: where it may not be asked for, the request is refused.

    Raises:
        ConfigError: They set what they may not.
    """
    raw = _checked(custom_params)
    exact, max_steps = bool(raw.get("exact")), raw.get("max_steps")
    if exact and not config.per_request:
        raise config_error(
            SOURCE,
            f"{KEY}.exact is true, and the server lets no request set it",
            "requests without",
            'remove the key, or serve with "per_request": true in the config',
        )
    reasons = ["exact"] if exact else []
    if max_steps is not None:
        is_heeded = config.per_request and config.policy == "goodput"
        reasons.append("max_steps" if is_heeded else "ignored")
        max_steps = max_steps if is_heeded else None
    if max_steps is None and config.max_steps is not None:
        reasons.append("default")
        max_steps = config.max_steps
    return RequestSettings(max_steps, exact, tuple(reasons))


def _checked(custom_params: object) -> Mapping[str, Any]:
    """Returns what a client set, checked."""
    raw = custom_params.get(KEY) if isinstance(custom_params, Mapping) else None
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise config_error(
            SOURCE,
            f"{KEY} is {shown(raw)}",
            f"an object with {' and '.join(ALLOWED)}",
            f'write it as {{"{KEY}": {{"max_steps": 3}}}}',
        )
    for name, value in raw.items():
        if name not in ALLOWED:
            raise config_error(
                SOURCE,
                f"unknown key {shown(f'{KEY}.{name}')}",
                ", ".join(ALLOWED),
                f"correct or remove it{closest(str(name), ALLOWED)}",
            )
        if not _is_right(name, value):
            raise config_error(
                SOURCE,
                f"{KEY}.{name} is {shown(value)}",
                ALLOWED[name],
                "write such a value, or remove the key",
            )
    return raw


def _is_right(name: str, value: object) -> bool:
    if value is None:
        return True
    if name == "exact":
        return isinstance(value, bool)
    return type(value) is int and 0 <= value <= MAX_STEPS  # True is an int, too
