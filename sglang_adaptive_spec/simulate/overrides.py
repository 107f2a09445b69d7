"""Settings of the policy from a command line: GROUP.NAME=VALUE."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import astuple, fields, replace
from typing import Any, get_type_hints

import msgspec

from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings

NUM_NEAREST = 3
NOT_REPLAYED = {
    "trees": "traces know chains only",
    "run_length": "its zero-step rounds run one decode each",
}
HINTS = {
    f"{group.name}.{name}": hint
    for group in fields(DEFAULTS)
    for name, hint in get_type_hints(group.type, include_extras=True).items()
}


class SettingError(ValueError):
    """An assignment that is none: one sentence with what was got, what is allowed, a fix."""


def settings_from(assignments: Iterable[str]) -> Settings:
    """Returns the defaults with other values; of two for one setting the later counts.

    Raises:
        SettingError: An unknown name, or a value that it cannot have.
    """
    settings = DEFAULTS
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(
                f"--set got {text!r}; allowed: GROUP.NAME=VALUE; fix: write it like "
                "acceptance.slow_memory=500."
            )
        if name not in HINTS:
            nearest = difflib.get_close_matches(name, HINTS, NUM_NEAREST, cutoff=0.0)
            raise SettingError(
                f"there is no setting {name!r}; allowed: those of policy/settings.py, the nearest "
                f"are {', '.join(nearest)}; fix: name one of them."
            )
        group, _, field = name.partition(".")
        if group in NOT_REPLAYED:
            raise SettingError(
                f"{name} has no part in a replay: {NOT_REPLAYED[group]}; allowed: the other "
                "groups; fix: leave it out."
            )
        changed = replace(getattr(settings, group), **{field: _value(name, value)})
        settings = replace(settings, **{group: changed})
    return settings


def differing(settings: Settings) -> dict[str, tuple[float, float]]:
    """Returns the value and the default of every setting that differs from it, by name."""
    values, defaults = _values(settings), _values(DEFAULTS)
    return {
        name: (values[name], defaults[name]) for name in HINTS if values[name] != defaults[name]
    }


def _values(settings: Settings) -> dict[str, float]:
    values = (value for group in astuple(settings) for value in group)
    return dict(zip(HINTS, values, strict=True))


def _value(name: str, text: str) -> float:
    try:
        value: float = msgspec.convert(text, HINTS[name], strict=False)
        if math.isfinite(value):
            return value
    except (msgspec.ValidationError, OverflowError):
        pass
    raise SettingError(
        f"{name} is {text!r}; allowed: {_allowed(HINTS[name])}, by default "
        f"{_values(DEFAULTS)[name]:g}; fix: set such a value."
    )


def _allowed(hint: Any) -> str:
    """Returns what an annotation of policy/settings.py takes, in words."""
    (bounds,) = hint.__metadata__
    kind = "a whole number" if hint.__origin__ is int else "a finite number"
    limits = (("above", bounds.gt), ("from", bounds.ge), ("below", bounds.lt))
    return " ".join([kind, *(f"{word} {bound:g}" for word, bound in limits if bound is not None)])
