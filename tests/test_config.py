"""adaptive_spec.json: what is accepted, what it means, and one sentence for every mistake."""

import ast
import itertools
import json
import pickle
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.config.file import SlotKeys, TopLevelKeys
from sglang_adaptive_spec.config.schema import (
    PRESETS,
    AdaptiveConfig,
    ConfigError,
    SlotConfig,
    load_config,
    parse_config,
    preset_path,
)
from sglang_adaptive_spec.tiers import Tier, chain_tier
from tests.hosts import REPO, host_source

SUPPORTED_HOSTS = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")

STEPS_1_3 = '"candidate_steps": [1, 3]'
STEPS = "whole numbers from 0 to"
SLOT = f'"1": {{{STEPS_1_3}}}'


@pytest.fixture
def load(tmp_path: Path):
    def load_text(text: str | bytes) -> AdaptiveConfig:
        path = tmp_path / "adaptive_spec.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(str(path))

    return load_text


def test_the_default_measures_within_a_memory_budget_and_goes_deepest_at_small_batches():
    config = load_config(None)
    assert config == load_config("goodput")
    assert (config.source, config.base, config.policy) == ("preset goodput", None, "goodput")
    assert (config.memory_budget_gb, config.record) == (4.0, None)
    steps = {bound: slot.candidate_steps for bound, slot in config.slots.items()}
    assert steps == {
        1: (0, 1, 2, 3, 5, 7, 10),
        33: (0, 1, 2, 3, 5, 7),
        257: (0,),
    }
    assert config.initial_steps(None) == 3


def test_conservative_is_the_documented_one():
    config = load_config("conservative")
    assert (config.base, config.policy) == (None, "ema")
    assert config.slots == {
        1: SlotConfig((1, 3, 7), down_hysteresis=-0.25),
        8: SlotConfig((1, 3), down_hysteresis=0.0),
        32: SlotConfig((1,), down_hysteresis=0.0),
    }


def test_aggressive_is_the_documented_one():
    slots = load_config("aggressive").slots
    assert {bound: (slot.candidate_steps, slot.ceiling_coeff) for bound, slot in slots.items()} == {
        1: ((1, 3, 7), 0.0),
        8: ((1, 3, 7), 3.0),
        64: ((1, 3), 1.67),
        128: ((1, 3), 1.2),
    }


def written(document: dict[str, object]) -> bytes:
    """A file as presets are written: one top-level key a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


@pytest.mark.parametrize("version", SUPPORTED_HOSTS)
def test_host_default_is_what_the_host_ships(version: str):
    path = host_source(version) / "sglang/srt/speculative/adaptive_spec_params.py"
    shipped = next(
        ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "DEFAULT_ADAPTIVE_CONFIG"
        and node.value is not None
    )
    assert preset_path("host-default").read_bytes() == written(shipped)


def test_a_tuning_key_counts_for_every_slot_and_a_slots_own_key_wins(load):
    """As the host merges ``{**file, **slot}``: all six keys, not only the three documented."""
    config = load(
        """{"ema_alpha": 1, "update_interval": 2, "warmup_batches": 0, "up_hysteresis": 0.5,
            "down_hysteresis": 0.125, "ceiling_coeff": 2, "1": {"candidate_steps": [3]},
            "4": {"candidate_steps": [1], "ema_alpha": 0.5, "ceiling_coeff": 0}}"""
    )
    assert config.slots[1] == SlotConfig((3,), 1.0, 2, 0, 0.5, 0.125, 2.0)
    assert config.slots[4] == SlotConfig((1,), 0.5, 2, 0, 0.5, 0.125, 0.0)


def test_slots_and_steps_are_sorted_and_steps_unique(load):
    config = load('{"016": {"candidate_steps": [1, 0]}, "0": {"candidate_steps": [7, 1, 3, 7]}}')
    assert list(config.slots) == [0, 16]
    assert config.slots[0].candidate_steps == (1, 3, 7)
    assert config.candidate_steps == (0, 1, 3, 7)


def test_own_keys_choose_base_and_policy(load):
    config = load('{"base": "EAGLE3", "policy": "ema", "1": {"candidate_steps": [1]}}')
    assert (config.base, config.policy) == ("EAGLE3", "ema")


@pytest.mark.parametrize(
    ("text", "policy", "why"),
    [
        (f"{{{SLOT}}}", "goodput", "the config names none"),
        ("{}", "goodput", "the config names none"),
        (f'{{"ema_alpha": 0.1, {SLOT}}}', "ema", "for its key ema_alpha"),
        (
            f'{{{SLOT}, "8": {{"ceiling_coeff": 0, {STEPS_1_3}}}}}',
            "ema",
            "for its key ceiling_coeff",
        ),
        (f'{{"policy": "ema", {SLOT}}}', "ema", ""),
    ],
)
def test_a_file_without_a_policy_means_goodput_unless_it_has_a_key_of_ema_s(
    load, text, policy, why
):
    config = load(text)
    assert (config.policy, config.why_policy, config.record) == (policy, why, None)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("goodput", "ngram")])
def test_a_preset_of_the_host_means_ema(name: str):
    assert load_config(name).policy == "ema"


def test_goodput_without_slots_may_use_what_the_preset_may(load):
    config = load('{"policy": "goodput", "memory_budget_gb": 2, "base": "EAGLE"}')
    assert config.slots == load_config("goodput").slots
    assert (config.policy, config.memory_budget_gb, config.base) == ("goodput", 2.0, "EAGLE")


def test_slots_under_goodput_are_limits_in_place_of_the_presets(load):
    config = load(
        '{"policy": "goodput", "1": {"candidate_steps": [5, 0]}, "32": {"candidate_steps": [0]}}'
    )
    assert config.slots == {1: SlotConfig((0, 5)), 32: SlotConfig((0,))}
    assert config.initial_steps(None) == 5
    assert less(config, 5).slots[1].candidate_steps == (0,)


@pytest.mark.parametrize("policy", ["ema", "goodput"])
def test_both_policies_can_record(policy: str, load):
    config = load(f'{{"policy": "{policy}", "record": "t.jsonl", {SLOT}}}')
    assert (config.policy, config.record) == (policy, "t.jsonl")


def test_a_presets_name_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "conservative").write_text('{"1": {"candidate_steps": [5]}}')
    monkeypatch.chdir(tmp_path)
    assert load_config("conservative").candidate_steps == (1, 3, 7)
    assert load_config("./conservative").candidate_steps == (5,)


def test_the_initial_step_is_the_middle_candidate_unless_requested():
    config = load_config("host-default")
    assert config.initial_steps(None) == 3
    assert config.initial_steps(0) == 0
    with pytest.raises(ConfigError, match=r"--speculative-num-steps is 4.*allowed: 0, 1, 3, 5, 7;"):
        config.initial_steps(4)


# file text -> what the sentence must name: key and what was got, allowed, fix
MISTAKES = {
    "empty file": ("", "not valid JSON", "one JSON object", "correct the file"),
    "not JSON": ('{"1": }', "line 1 column 7", "one JSON object", "correct the file"),
    "not text": (b"\xff\xfe\xff", "not valid JSON", "one JSON object", "correct the file"),
    "too deep": ("[" * 100_000, "not valid JSON", "one JSON object", "correct the file"),
    "a list": ("[1, 3]", "holds [1, 3]", "one JSON object", "wrap it"),
    "null": ("null", "holds null", "one JSON object", "wrap it"),
    "no slot": ('{"ema_alpha": 0.2}', '["ema_alpha"]', "whole-number keys", 'add "1": {'),
    "ema without slots": ('{"ema_alpha": 0.2}', 'keys ["ema_', "whole-number keys", 'add "1": {'),
    "typing slip": (f'{{"ema_alfa": 1, {SLOT}}}', '"ema_alfa"', "ema_alpha,", "mean ema_alpha?"),
    "negative slot": ('{"-1": {"candidate_steps": [1]}}', '"-1"', 'such as "8"', "remove it"),
    "huge slot": ('{"9999999999": {"candidate_steps": [1]}}', "999", 'such as "8"', "remove it"),
    "slot not a number": ('{"²": {"candidate_steps": [1]}}', "unknown key", '"8"', "remove it"),
    "slot twice": (f'{{{SLOT}, "01": {{"candidate_steps": [1]}}}}', '"01"', "once", "remove one"),
    "key twice": (f"{{{SLOT}, {SLOT}}}", 'key "1" stands twice', "once", "remove one"),
    "key twice in a slot": (
        '{"1": {"candidate_steps": [1], "candidate_steps": [3]}}',
        '"candidate_steps" stands twice',
        "once",
        "remove one",
    ),
    "slot is a list": ('{"1": [1, 3]}', '"1" is [1, 3]', "an object", "write it as"),
    "slot without steps": ('{"1": {"ema_alpha": 1}}', '"1" has no candidate_steps', STEPS, "name"),
    "steps at the top": (f'{{"candidate_steps": [1], {SLOT}}}', "top level", "slot", "move it"),
    "unknown in a slot": (
        '{"1": {"candidate_steps": [1], "base": "EAGLE"}}',
        '"1"."base"',
        "candidate_steps",
        "remove it",
    ),
    "policy": (f'{{"policy": "best", {SLOT}}}', 'policy is "best"', '"goodput" or', "default"),
    "policy is a list": (f'{{"policy": ["ema"], {SLOT}}}', 'is ["ema"]', '"goodput"', "default"),
    "budget under ema": (
        f'{{"memory_budget_gb": 4, "ema_alpha": 0.2, {SLOT}}}',
        'memory_budget_gb belongs to policy "goodput", and the policy is "ema"',
        "ema_alpha, update_interval",
        'set "policy": "goodput"',
    ),
    "slip under goodput": ('{"policy": "goodput", "recrod": ""}', "recrod", "base,", "an record?"),
    "goodput slot without steps": ('{"policy": "goodput", "1": {}}', "no cand", STEPS, "name the"),
    "base": (f'{{"base": "eagle3", {SLOT}}}', 'base is "eagle3"', '"EAGLE3"', "default"),
}
BAD_STEPS = ("[]", "[-1]", "[true]", "[1.0]", '["1"]', "[null]", "3", "null", "[4294967296]")
BAD_NUMBERS = {
    "ema_alpha": ("0", "-0.1", "1.01", "NaN", "Infinity", "true", '"0.2"', "null", "[0.2]"),
    "update_interval": ("0", "-1", "1.5", "5.0", "true", "NaN", '"5"', "null"),
    "warmup_batches": ("-1", "0.5", "true", "NaN", "null"),
    "up_hysteresis": ("NaN", "Infinity", "1e999", "true", '"0"', "null", "1" + "0" * 400),
    "down_hysteresis": ("NaN", "-Infinity", "-1e999", "false", "null"),
    "ceiling_coeff": ("-0.1", "NaN", "Infinity", "2000000", "true", "null"),
}
GOODPUT = '"policy": "goodput"'
MISTAKES["confidence without packed rounds"] = (
    f'{{{GOODPUT}, "packing": false, "confidence": true}}',
    '"confidence" chooses what packed rounds verify, and "packing" is false',
    "confidence with packing, or neither",
    "remove one of the two",
)
for key in BAD_NUMBERS:  # even with a value that ema would refuse
    rest = (f'{key} belongs to policy "ema", and the policy is "goodput"', "remove it, or set")
    MISTAKES[f"goodput {key}"] = (
        f'{{{GOODPUT}, "{key}": null}}',
        rest[0],
        "base, policy, memory_budget_gb, record, exact, per_request, requests, packing, "
        'confidence, comment, batch-size slots such as "8"',
        rest[1],
    )
    text = f'{{{GOODPUT}, "4": {{"{key}": 1, {STEPS_1_3}}}}}'
    MISTAKES[f"goodput slot {key}"] = (text, f'"4".{rest[0]}', "candidate_steps", rest[1])
for value in ("0", "-1", "0.0", "NaN", "Infinity", "1e999", "true", '"4"', "null", "[4]"):
    shown, rest = value.replace("1e999", "Infinity"), ("finite number above 0", "for its default")
    text = f'{{{GOODPUT}, "memory_budget_gb": {value}}}'
    MISTAKES[f"budget {value}"] = (text, f"memory_budget_gb is {shown}", *rest)
for value in ('""', '"a\\u0000b"', '"\\ud800"', "true", "3", '["t.jsonl"]'):
    MISTAKES[f"record {value}"] = (
        f'{{"record": {value}, {SLOT}}}',
        f"record is {value}",
        "path of a file",
        "for its default",
    )
for value in ('"both"', "true", "null", '["all"]'):
    MISTAKES[f"exact {value}"] = (
        f'{{"exact": {value}, {SLOT}}}',
        f"exact is {value}",
        '"processors", "all" or "none"',
        "for its default",
    )
for key, value in itertools.product(("per_request", "packing", "confidence"), ("3", "null", '"x"')):
    MISTAKES[f"{key} {value}"] = (
        f'{{"{key}": {value}, {SLOT}}}',
        f"{key} is {value}",
        "true or false",
        "for its default",
    )
for value in BAD_STEPS:
    MISTAKES[f"steps {value}"] = (
        f'{{"8": {{"candidate_steps": {value}}}}}',
        f'"8".candidate_steps is {value}',
        STEPS,
        "write such a value",
    )
for key, values in BAD_NUMBERS.items():
    for value in values:
        shown = value.replace("1e999", "Infinity")[:70]
        top, slot = f'{{"{key}": {value}, {SLOT}}}', f'{{"2": {{"{key}": {value}, {STEPS_1_3}}}}}'
        rest = ("number", "for its default")
        MISTAKES[f"{key} {value[:9]}"] = (top, f"{key} is {shown}", *rest)
        MISTAKES[f"slot {key} {value[:9]}"] = (slot, f'"2".{key} is {shown}', *rest)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_stops_with_one_sentence(name: str, load, tmp_path):
    text, got, allowed, fix = MISTAKES[name]
    with pytest.raises(ConfigError) as error:
        load(text)
    message = str(error.value)
    sentence = re.fullmatch(r"(.*?): (.*); allowed: (.*); fix: (.*)\.", message)
    assert sentence, message
    assert sentence[1] == str(tmp_path / "adaptive_spec.json")
    assert (got in sentence[2], allowed in sentence[3], fix in sentence[4]) == (True,) * 3, message
    assert len(message) - len(sentence[1]) < 500


@pytest.mark.parametrize("path", ["missing.json", "agressive", "", "a\0b", "x" * 5000, "."])
def test_a_file_that_cannot_be_read_is_named_with_the_presets(path: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    message = str(error.value)
    assert message.startswith(f"{path or chr(34) * 2}: --speculative-adaptive-config names a file")
    assert (
        "allowed: a readable JSON file or a preset: goodput, ngram, conservative, aggressive, h"
        in message
    )
    assert ("did you mean aggressive?" in message) == (path == "agressive")


finite = st.floats(allow_nan=False, allow_infinity=False)
slot_configs = st.builds(
    SlotConfig,
    st.sets(st.integers(0, 2**31 - 2), min_size=1, max_size=6).map(lambda s: tuple(sorted(s))),
    st.floats(0, 1, exclude_min=True),
    st.integers(1),
    st.integers(0),
    finite,
    finite,
    st.floats(0, 1e6),
)
bases = st.sampled_from([None, "EAGLE", "EAGLE3"])
bounds = st.integers(0, 999_999_999)
exacts = st.sampled_from(["processors", "all", "none"])
records = st.none() | st.text(min_size=1).filter(lambda path: "\0" not in path)
ema_configs = st.builds(
    AdaptiveConfig,
    st.just("x"),
    bases,
    st.just("ema"),
    st.dictionaries(bounds, slot_configs, min_size=1, max_size=4),
    record=records,
    exact=exacts,
)
trees = st.builds(
    lambda num_steps, topk, more: Tier(num_steps, topk, num_steps + 1 + more),
    st.integers(1, 64),
    st.integers(2, 16),
    st.integers(0, 1),
)
limits = st.builds(
    lambda slot, trees: SlotConfig(slot.candidate_steps, candidate_trees=tuple(sorted(trees))),
    slot_configs,
    st.sets(trees, max_size=3),
)
goodput_configs = st.builds(
    AdaptiveConfig,
    st.just("x"),
    bases,
    st.just("goodput"),
    st.dictionaries(bounds, limits, min_size=1, max_size=4),
    st.floats(0, exclude_min=True, allow_infinity=False),
).filter(lambda config: config.tiers != (chain_tier(0),))
configs = ema_configs | goodput_configs


def as_file(config: AdaptiveConfig) -> bytes:
    """A file that loads as ``config``, every default written out."""
    document: dict[str, object] = {
        "base": config.base,
        "policy": config.policy,
        "record": config.record,
        "exact": config.exact,
    }
    if config.policy == "goodput":
        document["memory_budget_gb"] = config.memory_budget_gb
    for bound, slot in config.slots.items():
        keys = asdict(slot) if config.policy == "ema" else {"candidate_steps": slot.candidate_steps}
        keys.pop("candidate_trees", None)
        if slot.candidate_trees:
            keys["candidate_tiers"] = slot.candidate_trees
        if not slot.candidate_steps:
            del keys["candidate_steps"]
        document[str(bound)] = keys
    return written(document)


@given(configs)
def test_a_config_round_trips_through_its_file_and_through_pickle(config: AdaptiveConfig):
    assert parse_config("x", as_file(config)) == config
    assert pickle.loads(pickle.dumps(config)) == config


def less(config: AdaptiveConfig, *steps: int) -> AdaptiveConfig:
    """The config on a ladder without these chains."""
    return config.on(config.ladder.without(map(chain_tier, steps)))


@given(configs, st.data())
def test_on_a_narrower_ladder_all_but_the_tiers_stays(config: AdaptiveConfig, data):
    withdrawn = data.draw(st.sets(st.sampled_from(config.tiers)))
    if len(withdrawn) == len(config.tiers):
        return
    ladder = config.ladder.without(withdrawn)
    narrowed = config.on(ladder)
    assert replace(narrowed, slots=config.slots) == config
    assert narrowed.ladder.ranges == ladder.ranges
    assert not withdrawn & set(narrowed.tiers)
    for bound, before in config.ladder.ranges.items():
        kept = tuple(tier for tier in before if tier not in withdrawn)
        assert ladder.ranges[bound] == kept or (not kept and len(ladder.ranges[bound]) == 1)


def test_a_slot_that_loses_all_its_steps_gets_the_nearest_smaller_one(load):
    config = load('{"1": {"candidate_steps": [0, 1, 4]}, "8": {"candidate_steps": [3, 5]}}')
    assert less(config, 3, 5).slots[8].candidate_steps == (1,)
    assert less(config, 0, 1, 3, 5).slots[8].candidate_steps == (4,)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_round_trips_through_its_file(name: str):
    config = load_config(name)
    assert parse_config(config.source, as_file(config)) == config


def test_the_docs_table_of_keys_has_every_key_under_its_policies_with_its_default():
    rows = {}
    for line in (REPO / "docs/config.md").read_text().split("## Keys\n")[1].splitlines():
        cells = line.split("|")
        if len(cells) == 8 and (key := re.fullmatch(r" `(\w+)` ", cells[1])):
            rows[key[1]] = (cells[2].strip(), cells[4].strip())
    slot, config = SlotConfig((1,)), load_config(None)
    assert rows == {
        "policy": ("", f'`"{TopLevelKeys().policy}"`; `"ema"` if the file has a key of it'),
        "base": ("both", "found from the draft"),
        "record": ("both", "none"),
        "comment": ("both", "none"),
        "exact": ("both", f'`"{config.exact}"`'),
        "per_request": ("both", f"`{str(config.per_request).lower()}`"),
        "requests": ("`goodput`", "none"),
        "memory_budget_gb": ("`goodput`", str(config.memory_budget_gb)),
        "packing": ("`goodput`", "where there are graphs"),
        "confidence": ("`goodput`", f"`{str(config.confidence).lower()}`"),
        "candidate_steps": ("both", "required"),
        "candidate_tiers": ("`goodput`", "none"),
        **{
            key: ("`ema`", str(getattr(slot, key))) for key in BAD_NUMBERS if key != "ceiling_coeff"
        },
        "ceiling_coeff": ("`ema`", "0 (off)"),
    }
    assert set(rows) == {*TopLevelKeys.__struct_fields__, *SlotKeys.__struct_fields__}


def test_every_preset_is_listed():
    assert {path.stem for path in preset_path("x").parent.glob("*.json")} == set(PRESETS)


def test_config_and_policy_load_neither_torch_nor_the_host():
    code = (
        "import sys, sglang_adaptive_spec.config.schema, sglang_adaptive_spec.policy.ema\n"
        "loaded = {'torch', 'triton', 'sglang'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
