"""The file format of adaptive_spec.json, and one sentence for every way to get it wrong.

The host takes unknown keys and duplicates in silence and fails late on bad values (sglang 0.5.23
speculative/adaptive_spec_params.py:_load_adaptive_config); here each of them stops the start.
"""

import difflib
import json
import re
import sys
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_STEPS = 2**31 - 2  # num_draft_tokens = num_steps + 1 travels in int32 tensors
# Of trees: the host reserves 2 * num_steps * topk KV slots for every request. 16 is the most that
# it relays between servers (sglang 0.5.21 disaggregation/utils.py).
MAX_TREE_STEPS, MAX_TOPK = 64, 16
MAX_CEILING_COEFF = 1e6  # far above any depth it could cap; keeps ema * coeff finite
MAX_SHOWN_CHARS = 80  # of a wrong value, inside a message

ALLOWED = {
    "candidate_steps": (
        f"a non-empty list of whole numbers from 0 to {MAX_STEPS}, such as [1, 3, 7]"
    ),
    "candidate_tiers": (
        "a non-empty list of [num_steps, topk, num_draft_tokens], whole numbers, such as "
        f"[[3, 4, 8]]: num_steps from 0 (from 1 to {MAX_TREE_STEPS} for a tree), topk from 1 to "
        f"{MAX_TOPK}"
    ),
    "ema_alpha": "a number above 0 and at most 1",
    "update_interval": "a whole number from 1 up",
    "warmup_batches": "a whole number from 0 up",
    "up_hysteresis": "a finite number",
    "down_hysteresis": "a finite number",
    "ceiling_coeff": f"a number from 0 (off) to {MAX_CEILING_COEFF:.0f}",
    "base": '"EAGLE", "EAGLE3", "STANDALONE" or "NGRAM"',
    "policy": '"goodput" or "ema"',
    "memory_budget_gb": "a finite number above 0",
    "record": "the path of a file to write, or null for none",
    "exact": '"processors", "all" or "none"',
    "per_request": "true or false",
    "requests": f"an object with max_steps, a whole number from 0 to {MAX_STEPS}",
    "packing": "true or false",
    "confidence": "true or false",
}
# The host's isdigit(), less what its int() then refuses; leading zeros and "0" stay allowed.
SLOT_NAME = re.compile(r"[0-9]{1,9}")
SLOT_EXAMPLE = '"1": {"candidate_steps": [1, 3, 7]}'

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Steps = Annotated[int, Meta(ge=0, le=MAX_STEPS)]
WritablePath = Annotated[str, Meta(pattern=r"\A[^\x00\ud800-\udfff]+\Z")]  # what open() can take
PolicyName = Literal["ema", "goodput"]
Base = Literal["EAGLE", "EAGLE3", "STANDALONE", "NGRAM"]
Exact = Literal["processors", "all", "none"]


Shape = tuple[Steps, Annotated[int, Meta(ge=1, le=MAX_TOPK)], Annotated[int, Meta(ge=1)]]


class ConfigError(ValueError):
    """A wrong config or flag: one sentence with file, key, what was got, what is allowed, a fix."""


class TuningKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that may stand at the top level, for every slot, or in a slot, which wins."""

    ema_alpha: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    update_interval: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    warmup_batches: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    up_hysteresis: Finite | UnsetType = UNSET
    down_hysteresis: Finite | UnsetType = UNSET
    ceiling_coeff: Annotated[float, Meta(ge=0, le=MAX_CEILING_COEFF)] | UnsetType = UNSET


class RequestKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for requests that do not say otherwise."""

    max_steps: Steps | None = None


class TopLevelKeys(TuningKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the top level holds beside the slots."""

    base: Base | None = None
    policy: PolicyName = "goodput"  # ema where the file has a key of it: `parse_document`
    memory_budget_gb: Annotated[float, Meta(gt=0, le=sys.float_info.max)] | UnsetType = UNSET
    record: WritablePath | None = None
    exact: Exact = "processors"
    per_request: bool = True
    requests: RequestKeys = RequestKeys()
    packing: bool | UnsetType = UNSET
    confidence: bool | UnsetType = UNSET
    comment: Any = None  # for readers; `sglang-adaptive-spec tune` writes where a file comes from


class SlotKeys(TuningKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands under an integer key."""

    candidate_steps: Annotated[list[Steps], Meta(min_length=1)] | UnsetType = UNSET
    candidate_tiers: Annotated[list[Shape], Meta(min_length=1)] | UnsetType = UNSET


Keys = TypeVar("Keys", bound=TuningKeys)

OF_EMA = TuningKeys.__struct_fields__
# Keys that mean nothing under a policy, and the policy that they belong to.
FOREIGN_KEYS: Mapping[PolicyName, tuple[Collection[str], PolicyName]] = {
    "ema": (
        ("memory_budget_gb", "candidate_tiers", "requests", "packing", "confidence"),
        "goodput",
    ),
    "goodput": (OF_EMA, "ema"),
}


def config_error(source: str, got: str, allowed: str, fix: str) -> ConfigError:
    """Builds the one sentence that every config mistake ends in."""
    return ConfigError(f"{source}: {got}; allowed: {allowed}; fix: {fix}.")


class Document(NamedTuple):
    """A checked config file."""

    keys: TopLevelKeys
    slots: dict[int, SlotKeys]  # by lower bound
    why_policy: str  # where the file names none


def parse_document(source: str, text: bytes) -> Document:
    """Checks a config file.

    The policy is the one that the file names; without one `ema` where a key of ema's stands, as
    SGLang would read it, else `goodput`. Only under `goodput` may there be no slot.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    raw = _decode(source, text)
    slot_names = [key for key in raw if SLOT_NAME.fullmatch(key)]
    top_level = {key: value for key, value in raw.items() if key not in slot_names}
    named = {key: value for key, value in top_level.items() if key == "policy"}
    of_ema, why_policy = None if named else ema_key(raw), ""
    if of_ema is not None:
        named, why_policy = {"policy": "ema"}, f"for its key {of_ema}"
        top_level |= named
    elif not named:
        why_policy = "the config names none"
    policy = _convert(source, "", named, TopLevelKeys).policy if named else None
    keys = _convert(source, "", top_level, TopLevelKeys, policy)
    if not slot_names and policy == "ema":
        raise config_error(
            source,
            f"no batch-size slot among its keys {shown(list(raw))}",
            "one or more whole-number keys, each the smallest batch size of a slot",
            f'add {SLOT_EXAMPLE}, or "policy": "goodput", which needs none',
        )
    slots: dict[int, SlotKeys] = {}
    for name in sorted(slot_names, key=int):
        if int(name) in slots:
            raise config_error(
                source,
                f"key {shown(name)} repeats batch-size slot {int(name)}",
                "each slot once",
                "remove one of the two",
            )
        slots[int(name)] = _slot(source, name, raw[name], policy)
    return Document(keys, slots, why_policy)


def ema_key(raw: Mapping[str, object]) -> str | None:
    """Returns the first key of a file that only the policy ema reads, if it has one."""
    levels = (raw, *(value for value in raw.values() if isinstance(value, dict)))
    return next((key for level in levels for key in level if key in OF_EMA), None)


def closest(name: str, names: Collection[str]) -> str:
    """Returns `` (did you mean X?)`` for a likely slip of the pen, else nothing."""
    found = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def _slot(source: str, name: str, value: object, policy: PolicyName | None) -> SlotKeys:
    if not isinstance(value, dict):
        raise config_error(
            source,
            f"slot {shown(name)} is {shown(value)}",
            "an object with candidate_steps",
            f"write it as {SLOT_EXAMPLE}",
        )
    keys = _convert(source, f'"{name}".', value, SlotKeys, policy)
    if keys.candidate_steps is UNSET and keys.candidate_tiers is UNSET:
        raise config_error(
            source,
            f"slot {shown(name)} has no candidate_steps among its keys {shown(list(value))}",
            ALLOWED["candidate_steps"],
            f"name the steps that this slot may use, as in {SLOT_EXAMPLE}",
        )
    if not isinstance(keys.candidate_tiers, UnsetType):
        for shape in keys.candidate_tiers:
            _check_shape(source, f'"{name}".candidate_tiers', shape)
    return keys


def _check_shape(source: str, place: str, shape: tuple[int, int, int]) -> None:
    """Checks what the three numbers of a tier allow each other; the host's own rules."""
    num_steps, topk, num_draft_tokens = shape
    # The host writes the whole accepted path, root included, into that many rows of a tree (sglang
    # 0.5.23 eagle_worker_common.py:_compact_accept_to_front).
    least = num_steps + 1
    most = 1 + topk + (num_steps - 1) * topk**2
    if topk == 1:
        is_right = num_draft_tokens == least
        allowed = f"num_draft_tokens {least} (num_steps + 1) where topk is 1"
    else:
        is_right = 1 <= num_steps <= MAX_TREE_STEPS and least <= num_draft_tokens <= most
        allowed = (
            f"num_steps from 1 to {MAX_TREE_STEPS} where topk is above 1, and num_draft_tokens "
            "from num_steps + 1 to 1 + topk + (num_steps - 1) * topk^2"
            + (f", {least} to {most}" if num_steps > 0 else "")
        )
    if not is_right:
        raise config_error(
            source,
            f"{place} holds {list(shape)}",
            allowed,
            "correct the tier or remove it",
        )


def _convert(
    source: str,
    place: str,
    raw: dict[str, Any],
    kind: type[Keys],
    policy: PolicyName | None = None,
) -> Keys:
    """Checks key by key, so that the message can show the value as it stands in the file."""
    foreign, _ = FOREIGN_KEYS[policy] if policy is not None else ((), None)
    all_fields = {field.name: field for field in msgspec.structs.fields(kind)}
    fields = {name: field for name, field in all_fields.items() if name not in foreign}
    for key, value in raw.items():
        if key not in fields:
            if key in all_fields:
                assert policy is not None, "without one no key is foreign"
                raise _foreign_key(source, place, key, list(fields), policy)
            raise _unknown_key(source, place, key, list(fields))
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError:
            has_default = not key.startswith("candidate_")
            or_default = ", or remove the key for its default" if has_default else ""
            raise config_error(
                source,
                f"{place}{key} is {shown(value)}",
                ALLOWED[key],
                f"write such a value{or_default}",
            ) from None
    return msgspec.convert(raw, kind)


def _foreign_key(
    source: str, place: str, key: str, names: list[str], policy: PolicyName
) -> ConfigError:
    _, owner = FOREIGN_KEYS[policy]
    return config_error(
        source,
        f'{place}{key} belongs to policy "{owner}", and the policy is "{policy}"',
        ", ".join(_with_slots(place, names)),
        f'remove it, or set "policy": "{owner}" at the top level',
    )


def _unknown_key(source: str, place: str, key: str, names: list[str]) -> ConfigError:
    if not place and key == "candidate_steps":
        return config_error(
            source,
            "candidate_steps stands at the top level, where SGLang ignores it",
            "candidate_steps inside a batch-size slot",
            f"move it into a slot, as in {SLOT_EXAMPLE}",
        )
    names = _with_slots(place, names)
    return config_error(
        source,
        f"unknown key {place}{shown(key)}",
        ", ".join(names),
        f"correct or remove it{closest(key, names)}",
    )


def _with_slots(place: str, names: list[str]) -> list[str]:
    return names if place else [*names, 'batch-size slots such as "8"']


def _decode(source: str, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise config_error(
                    source,
                    f"key {shown(key)} stands twice in one object",
                    "each key once",
                    "remove one of the two",
                )
            found[key] = value
        return found

    try:
        raw = json.loads(text, object_pairs_hook=unique)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise config_error(
            source, f"not valid JSON ({error})", "one JSON object", "correct the file there"
        ) from error
    if not isinstance(raw, dict):
        raise config_error(
            source,
            f"holds {shown(raw)}",
            "one JSON object",
            "wrap it: {" + SLOT_EXAMPLE + "}",
        )
    return raw


def shown(value: object) -> str:
    """Returns a wrong value as it stands in a message."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
