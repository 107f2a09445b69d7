"""What is wrong between a stated result and what its raw repeats give."""

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]

GPU = "H200"  # that most of the committed results are about


class Gap(str):
    """A part of a result that was not measured: said, and no fault of what is there."""

    __slots__ = ()


def keys(where: str, found: Raw, wanted: set[str]) -> list[str]:
    """Returns a problem if the keys are not exactly the wanted ones."""
    return [f"{where}: keys {sorted(found)}, expected {sorted(wanted)}"] * (set(found) != wanted)


def at_least(where: str, found: Raw, wanted: set[str]) -> list[str]:
    """Returns a problem if one of the wanted keys is missing."""
    missing = wanted - set(found)
    return [f"{where} lacks {sorted(missing)}"] if missing else []


def gaps(where: str, found: Raw, wanted: set[str]) -> list[str]:
    """Returns what `at_least` does, as a gap; that nothing is there is a fault."""
    problems = at_least(where, found, wanted)
    return [Gap(problem) for problem in problems] if found else problems


def measured_on(provenance: Raw, gpu: str = GPU) -> list[str]:
    """Returns a problem if a result was measured on another GPU."""
    found = provenance.get("gpu")
    return [] if gpu in str(found) else [f"measured on {found}, not on an {gpu}"]


def differences(stated: Any, recomputed: Any, where: str) -> list[str]:
    """Returns where two JSON values differ."""
    if isinstance(stated, Mapping) and isinstance(recomputed, Mapping):
        keys = sorted({*stated, *recomputed})
        return [
            problem
            for key in keys
            for problem in differences(stated.get(key), recomputed.get(key), f"{where}.{key}")
        ]
    if stated == recomputed:
        return []
    return [f"{where.lstrip('.')}: the file says {stated!r}, its raw repeats give {recomputed!r}"]
