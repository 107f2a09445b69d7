"""What the server may do: batch-size slots, their candidate steps, and how fast they adapt.

`load_config` takes the value of the host's own ``--speculative-adaptive-config``: the path of an
adaptive_spec.json in SGLang's documented format, or the name of a preset. A tuning key in a slot
wins over the same key at the top level, as the host merges ``{**file, **slot}`` (sglang 0.5.23
speculative/adaptive_spec_params.py:AdaptiveSpeculativeParams). Only the policy `ema` has tuning
keys; `goodput` measures what they guess. Reference: docs/config.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from sglang_adaptive_spec.config.file import (
    Base,
    ConfigError,
    Exact,
    PolicyName,
    SlotKeys,
    TuningKeys,
    closest,
    config_error,
    parse_document,
)
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import Tier, chain_tier

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "AdaptiveConfig",
    "ConfigError",
    "SlotConfig",
    "load_config",
    "named_flags",
    "parse_config",
    "preset_path",
]

PRESETS = ("goodput", "ngram", "conservative", "aggressive", "host-default")
DEFAULT_PRESET = "goodput"
DEFAULT_MEMORY_BUDGET_GB = 4.0  # a choice: 5 % of an 80 GB card
# The server arguments that name a tier, in the order of its fields.
TIER_FLAGS = (
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
)


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """One batch-size slot; the defaults are the host's. Only the policy ema reads the tuning."""

    candidate_steps: tuple[int, ...]  # chains: ascending, unique
    ema_alpha: float = 0.2
    update_interval: int = 5  # observed rounds from one decision to the next
    warmup_batches: int = 10  # observed rounds before the first interval starts
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25
    ceiling_coeff: float = 0.0  # 0 is off
    candidate_trees: tuple[Tier, ...] = ()  # topk above 1: ascending, unique

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Chains and trees, ascending."""
        return tuple(sorted([*map(chain_tier, self.candidate_steps), *self.candidate_trees]))


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """A checked config; picklable, equal by value."""

    source: str  # "preset NAME", or the path as given
    base: Base | None  # None: found from the draft model
    policy: PolicyName
    slots: Mapping[int, SlotConfig]  # by lower bound of the batch size, ascending
    memory_budget_gb: float = DEFAULT_MEMORY_BUDGET_GB  # all tiers' graphs and backends; goodput
    record: str | None = None  # path of the trace to write
    exact: Exact = "processors"  # what keeps a batch at zero steps
    per_request: bool = True  # whether clients may set what holds for their own requests
    max_steps: int | None = None  # drafts a round that count for a request that does not say
    # Whether rounds may verify another number of drafts per request; None: where there are graphs.
    packing: bool | None = None
    confidence: bool = False  # whether the draft's confidence chooses what is verified
    initial: Tier | None = None  # where to start, from the server arguments; no key of a file
    why_policy: str = field(default="", compare=False)  # where the file names none

    @property
    def candidate_steps(self) -> tuple[int, ...]:
        """The union of all slots' candidate steps, ascending; chains only."""
        return tuple(
            sorted({step for slot in self.slots.values() for step in slot.candidate_steps})
        )

    @property
    def ladder(self) -> Ladder:
        """Which tiers a batch may choose."""
        return Ladder({bound: slot.tiers for bound, slot in self.slots.items()})

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The union of all slots' tiers, ascending."""
        return self.ladder.tiers

    @property
    def largest_tier(self) -> Tier:
        """The smallest shape that holds every tier; with trees perhaps no tier itself.

        At least one step: the host cannot start EAGLE at zero (sglang 0.5.23 draft_utils.py).
        """
        num_steps, topk, num_draft_tokens = map(max, zip(*self.tiers, strict=True))
        return Tier(max(num_steps, 1), topk, max(num_draft_tokens, 2))

    def initial_tier(self, num_steps: int) -> Tier:
        """Returns ``initial`` if it has ``num_steps``, else the narrowest tier that does."""
        tiers = [tier for tier in self.tiers if tier.num_steps == num_steps]
        return self.initial if self.initial in tiers else min(tiers)

    def initial_steps(self, requested: int | None) -> int:
        """Returns the step count to start at: ``requested``, else the middle candidate.

        Raises:
            ConfigError: No tier has ``requested`` steps.
        """
        depths = tuple(sorted({tier.num_steps for tier in self.tiers}))
        if requested is None:
            candidates = self.candidate_steps or depths
            return candidates[len(candidates) // 2]
        if requested not in depths:
            raise config_error(
                self.source,
                f"--speculative-num-steps is {requested}, which no tier has",
                ", ".join(map(str, depths)),
                "pass one of them, drop the flag, or add the value to a slot's candidate_steps",
            )
        return requested

    def has_tier(self, given: Sequence[int | None]) -> bool:
        """Says whether any tier has every number that is given, in the order of its fields."""
        return any(_has(tier, given) for tier in self.tiers)

    def starting_tier(
        self, num_steps: int | None, topk: int | None, num_draft_tokens: int | None
    ) -> Tier:
        """Returns the tier to start at: the narrowest one with every number that is given.

        A topk alone names no tier; it may stand where all tiers have it, or only one has.

        Raises:
            ConfigError: No tier has all of them, or a topk alone contradicts the other tiers.
        """
        steps = self.initial_steps(num_steps)
        given = (num_steps, topk, num_draft_tokens)
        tiers = [tier for tier in self.tiers if _has(tier, given)]
        if not tiers:
            raise _no_such_tier(self, given)
        if num_steps is not None or num_draft_tokens is not None or len(tiers) == 1:
            return min(tiers, key=lambda tier: (tier.topk, tier.num_draft_tokens, tier.num_steps))
        if len(tiers) < len(self.tiers):
            raise _topk_of_some(self, topk)
        return self.initial_tier(steps)

    def on(self, ladder: Ladder) -> "AdaptiveConfig":
        """Returns this config with the tiers of ``ladder``; a range of its own is cut from ours."""
        slots = {
            bound: replace(
                self.slots[self.ladder.bound(bound)],
                candidate_steps=tuple(t.num_steps for t in tiers if t.topk == 1),
                candidate_trees=tuple(t for t in tiers if t.topk > 1),
            )
            for bound, tiers in ladder.ranges.items()
        }
        return replace(self, slots=slots)


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
    keys, slots, why_policy = parse_document(source, text)
    common = _given(keys)
    merged = {bound: _slot_config(common, slot) for bound, slot in slots.items()}
    if keys.record is not None and any(slot.candidate_trees for slot in merged.values()):
        raise config_error(
            source,
            "record stands beside trees in candidate_tiers, and traces know chains only",
            "record with chains, or trees without record",
            "remove one of the two",
        )
    if keys.confidence is True and keys.packing is False:
        raise config_error(
            source,
            '"confidence" chooses what packed rounds verify, and "packing" is false',
            "confidence with packing, or neither",
            "remove one of the two",
        )
    depths = {tier.num_steps for slot in merged.values() for tier in slot.tiers}
    if depths == {0} and keys.policy == "goodput":
        raise config_error(
            source,
            "every slot has zero steps alone, so that nothing is left to choose",
            "a step count above 0 in some slot",
            "add one to a slot's candidate_steps, serve without --speculative-algorithm, or name "
            'the policy "ema"',
        )
    budget = keys.memory_budget_gb
    return AdaptiveConfig(
        source,
        keys.base,
        keys.policy,
        merged or load_config("goodput").slots,  # only goodput may name no slot
        DEFAULT_MEMORY_BUDGET_GB if isinstance(budget, UnsetType) else budget,
        keys.record,
        keys.exact,
        keys.per_request,
        keys.requests.max_steps,
        None if isinstance(keys.packing, UnsetType) else keys.packing,
        keys.confidence is True,
        why_policy=why_policy,
    )


def named_flags(given: Sequence[int | None]) -> str:
    """Returns the server arguments that name a tier as given, in the order of its fields."""
    named = zip(TIER_FLAGS, given, strict=True)
    return " and ".join(f"{flag} {value}" for flag, value in named if value is not None)


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
    shapes = [] if isinstance(slot.candidate_tiers, UnsetType) else slot.candidate_tiers
    named = [] if isinstance(slot.candidate_steps, UnsetType) else slot.candidate_steps
    tiers = {*map(chain_tier, named), *(Tier(*shape) for shape in shapes)}
    steps = tuple(sorted(tier.num_steps for tier in tiers if tier.topk == 1))
    trees = tuple(sorted(tier for tier in tiers if tier.topk > 1))
    keys = {"candidate_steps": steps, "candidate_trees": trees}
    return SlotConfig(**{**common, **_given(slot), **keys})


def _has(tier: Tier, given: Sequence[int | None]) -> bool:
    return all(want in (None, has) for want, has in zip(given, tier, strict=True))


def _no_such_tier(config: AdaptiveConfig, given: Sequence[int | None]) -> ConfigError:
    return config_error(
        config.source,
        f"no tier has {named_flags(given)}",
        "the numbers of one tier, [num_steps, topk, num_draft_tokens]: "
        + ", ".join(str(list(tier)) for tier in config.tiers),
        "pass those of one of them, drop the flags, or add the tier to a slot",
    )


def _topk_of_some(config: AdaptiveConfig, topk: int | None) -> ConfigError:
    return config_error(
        config.source,
        f"{TIER_FLAGS[1]} is {topk}, and the tiers have topk "
        + ", ".join(map(str, sorted({tier.topk for tier in config.tiers}))),
        f"that flag where every tier has its topk, or beside {TIER_FLAGS[0]}: both then name the "
        "tier to start at",
        f"drop the flag, add {TIER_FLAGS[0]}, or remove the other tiers from candidate_tiers",
    )


def _given(keys: TuningKeys) -> dict[str, Any]:
    """Returns the tuning keys that the file names, and only those."""
    names = TuningKeys.__struct_fields__
    return {name: value for name in names if (value := getattr(keys, name)) is not UNSET}
