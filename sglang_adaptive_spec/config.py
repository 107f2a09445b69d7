"""What the server may do: batch-size slots, their candidate steps, and how fast they adapt.

`load_config` takes the value of the host's own ``--speculative-adaptive-config``: the path of an
adaptive_spec.json in SGLang's documented format, or the name of a preset. A tuning key in a slot
wins over the same key at the top level, as the host merges ``{**file, **slot}`` (sglang 0.5.23
speculative/adaptive_spec_params.py:AdaptiveSpeculativeParams). Only the policy `ema` has tuning
keys; `goodput` measures what they guess. Reference: docs/config.md.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from sglang_adaptive_spec.config_file import (
    ConfigError,
    PolicyName,
    SlotKeys,
    TuningKeys,
    closest,
    config_error,
    format_document,
    parse_document,
)

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "AdaptiveConfig",
    "ConfigError",
    "SlotConfig",
    "load_config",
    "parse_config",
    "preset_path",
]

PRESETS = ("goodput", "conservative", "aggressive", "host-default")
DEFAULT_PRESET = "goodput"
DEFAULT_MEMORY_BUDGET_GB = 4.0  # what issue 3 grants the tiers; not a measured value


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """One batch-size slot; the defaults are the host's. Only the policy ema reads the tuning."""

    candidate_steps: tuple[int, ...]  # ascending, unique
    ema_alpha: float = 0.2
    update_interval: int = 5  # observed rounds from one decision to the next
    warmup_batches: int = 10  # observed rounds before the first interval starts
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25
    ceiling_coeff: float = 0.0  # 0 is off


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """A checked config; picklable, equal by value."""

    source: str  # "preset NAME", or the path as given
    base: Literal["EAGLE", "EAGLE3"] | None  # None: found from the draft model
    policy: PolicyName
    slots: Mapping[int, SlotConfig]  # by lower bound of the batch size, ascending
    memory_budget_gb: float = DEFAULT_MEMORY_BUDGET_GB  # all tiers' graphs and backends; goodput
    record: str | None = None  # path of the trace to write

    @property
    def candidate_steps(self) -> tuple[int, ...]:
        """The union of all slots' candidate steps, ascending."""
        return tuple(
            sorted({step for slot in self.slots.values() for step in slot.candidate_steps})
        )

    def initial_steps(self, requested: int | None) -> int:
        """Returns the step count to start at: ``requested``, else the middle candidate.

        Raises:
            ConfigError: ``requested`` is no candidate of any slot.
        """
        candidates = self.candidate_steps
        if requested is None:
            return candidates[len(candidates) // 2]
        if requested not in candidates:
            raise config_error(
                self.source,
                f"--speculative-num-steps is {requested}, which is no candidate step",
                ", ".join(map(str, candidates)),
                "pass one of them, drop the flag, or add the value to a slot's candidate_steps",
            )
        return requested

    def without(self, steps: Collection[int]) -> "AdaptiveConfig":
        """Returns this config with ``steps`` withdrawn from every slot.

        A slot left empty gets the largest remaining step below its own smallest one, so that it
        never drafts deeper than its file allows; if there is none, the smallest remaining step.

        Raises:
            ConfigError: No candidate step would be left.
        """
        remaining = tuple(step for step in self.candidate_steps if step not in steps)
        if not remaining:
            raise config_error(
                self.source,
                f"none of the candidate steps {', '.join(map(str, self.candidate_steps))} is left",
                "at least one that fits into memory",
                "free memory, or name smaller steps",
            )
        slots = {bound: _withdraw(slot, remaining) for bound, slot in self.slots.items()}
        return replace(self, slots=slots)

    def to_json(self) -> str:
        """Returns a file that loads as this config, every default written out."""
        document: dict[str, object] = {"base": self.base, "policy": self.policy}
        document["record"] = self.record
        if self.policy == "goodput":
            document["memory_budget_gb"] = self.memory_budget_gb
        for bound, slot in self.slots.items():
            limit = {"candidate_steps": slot.candidate_steps}
            document[str(bound)] = asdict(slot) if self.policy == "ema" else limit
        return format_document(document)


def load_config(path_or_preset: str | None) -> AdaptiveConfig:
    """Returns the config in a file or preset; None is the preset ``goodput``.

    A preset's name wins over a file of the same name in the working directory.

    Raises:
        ConfigError: There is no such file, or it is not a valid config.
    """
    name = DEFAULT_PRESET if path_or_preset is None else path_or_preset
    is_preset = name in PRESETS
    source = f"preset {name}" if is_preset else name
    return parse_config(source, preset_path(name).read_bytes() if is_preset else _read(name))


def parse_config(source: str, text: bytes) -> AdaptiveConfig:
    """Returns the config that ``text`` holds; ``source`` names it in messages.

    Raises:
        ConfigError: It is not a valid config.
    """
    keys, slots = parse_document(source, text)
    common = _given(keys)
    merged = {bound: _slot_config(common, slot) for bound, slot in slots.items()}
    budget = keys.memory_budget_gb
    return AdaptiveConfig(
        source,
        keys.base,
        keys.policy,
        merged or load_config("goodput").slots,  # only goodput may name no slot
        DEFAULT_MEMORY_BUDGET_GB if isinstance(budget, UnsetType) else budget,
        keys.record,
    )


def preset_path(name: str) -> Path:
    """Returns the file of a preset."""
    return Path(__file__).parent / "presets" / f"{name}.json"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # not Path: it reads an empty name as "."
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a null byte inside the name
        reason = getattr(error, "strerror", None) or str(error)
        raise config_error(
            path or '""',
            f"--speculative-adaptive-config names a file that cannot be read ({reason})",
            f"a readable JSON file or a preset: {', '.join(PRESETS)}",
            f"correct the path or name a preset{closest(path, PRESETS)}",
        ) from error


def _slot_config(common: dict[str, Any], slot: SlotKeys) -> SlotConfig:
    steps = tuple(sorted(set(slot.candidate_steps)))
    return SlotConfig(**{**common, **_given(slot), "candidate_steps": steps})


def _given(keys: TuningKeys) -> dict[str, Any]:
    """Returns the tuning keys that the file names, and only those."""
    names = TuningKeys.__struct_fields__
    return {name: value for name in names if (value := getattr(keys, name)) is not UNSET}


def _withdraw(slot: SlotConfig, remaining: tuple[int, ...]) -> SlotConfig:
    kept = tuple(step for step in slot.candidate_steps if step in remaining)
    if not kept:
        below = [step for step in remaining if step < slot.candidate_steps[0]]
        kept = (below[-1] if below else remaining[0],)
    return replace(slot, candidate_steps=kept)
