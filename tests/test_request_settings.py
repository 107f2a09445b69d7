"""What a client may set for its own request: what holds, what is counted, what is refused."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from sglang_adaptive_spec.config.file import MAX_STEPS, ConfigError
from sglang_adaptive_spec.config.request import REASONS, RequestSettings, request_settings
from sglang_adaptive_spec.config.schema import load_config, parse_config

CONFIG = load_config(None)
OFF = replace(CONFIG, per_request=False)
EMA = load_config("conservative")


def settings(value: Any, config: Any = CONFIG) -> RequestSettings:
    return request_settings({"adaptive_spec": value, "of others": 3}, config)


@pytest.mark.parametrize("params", [None, {}, {"thinking_budget": 4}, {"adaptive_spec": None}])
def test_without_settings_nothing_holds_and_nothing_is_counted(params: Any) -> None:
    assert request_settings(params, CONFIG) == RequestSettings()
    assert request_settings(params, CONFIG).describe() == {}


@pytest.mark.parametrize("max_steps", [0, 1, 100, MAX_STEPS])
def test_a_limit_holds_where_clients_may_set_one(max_steps: int) -> None:
    assert settings({"max_steps": max_steps}) == RequestSettings(max_steps, False, ("max_steps",))
    assert settings({"max_steps": max_steps}).describe() == {"max_steps": max_steps}
    for config in (OFF, EMA):
        assert settings({"max_steps": max_steps}, config) == RequestSettings(
            None, False, ("ignored",)
        )


def test_the_config_s_limit_holds_for_requests_without_one() -> None:
    config = replace(CONFIG, max_steps=2)
    assert request_settings(None, config) == RequestSettings(2, False, ("default",))
    assert settings({"max_steps": None}, config).max_steps == 2
    assert settings({"max_steps": 5}, config) == RequestSettings(5, False, ("max_steps",))
    off = replace(config, per_request=False)
    assert settings({"max_steps": 5}, off) == RequestSettings(2, False, ("ignored", "default"))


def test_exactness_is_promised_or_refused() -> None:
    assert settings({"exact": True}) == RequestSettings(None, True, ("exact",))
    assert settings({"exact": True}).describe() == {"exact": True}
    assert settings({"exact": False}) == settings({"exact": None}) == RequestSettings()
    assert settings({"exact": True}, EMA).exact
    assert settings({"exact": False}, OFF) == RequestSettings()
    with pytest.raises(ConfigError, match=r"exact is true, and .* \"per_request\": true"):
        settings({"exact": True}, OFF)


WRONG = {
    "no object": (3, "adaptive_spec is 3", "an object with max_steps and exact"),
    "a list": (["max_steps"], 'adaptive_spec is ["max_steps"]', "an object with"),
    "a text": ({"max_steps": "3"}, 'adaptive_spec.max_steps is "3"', "a whole number from 0"),
    "negative": ({"max_steps": -1}, "adaptive_spec.max_steps is -1", "a whole number from 0"),
    "too large": (
        {"max_steps": MAX_STEPS + 1},
        "adaptive_spec.max_steps is 2147483647",
        "to 214748",
    ),
    "a truth": ({"max_steps": True}, "adaptive_spec.max_steps is true", "a whole number from 0"),
    "a fraction": ({"max_steps": 2.0}, "adaptive_spec.max_steps is 2.0", "a whole number from 0"),
    "no number": ({"max_steps": float("nan")}, "adaptive_spec.max_steps is NaN", "a whole number"),
    "of Python": ({"max_steps": {1}}, 'adaptive_spec.max_steps is "{1}"', "a whole number"),
    "long": ({"exact": "x" * 999}, "adaptive_spec.exact is", "true, false or null"),
    "a number": ({"exact": 1}, "adaptive_spec.exact is 1", "true, false or null"),
    "misspelt": ({"maxsteps": 1}, 'unknown key "adaptive_spec.maxsteps"', "max_steps, exact"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("config", [CONFIG, OFF], ids=["on", "off"])
def test_a_wrong_value_is_one_sentence(name: str, config: Any) -> None:
    value, got, allowed = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        settings(value, config)
    sentence = re.fullmatch(
        r"sampling_params.custom_params: (.*); allowed: (.*); fix: (.*)\.", str(caught.value)
    )
    assert sentence is not None, caught.value
    assert (got in sentence[1], allowed in sentence[2]) == (True, True), sentence[0]
    assert len(sentence[0]) < 300


def test_every_reason_is_known() -> None:
    config = replace(CONFIG, max_steps=2)
    asked = [{"max_steps": 1}, {"exact": True}, {}]
    seen = {reason for value in asked for reason in settings(value, config).reasons}
    seen |= set(settings({"max_steps": 1}, OFF).reasons)
    assert {*seen, "refused"} == set(REASONS)


def test_a_file_says_what_requests_have_and_may_set() -> None:
    text = {"per_request": False, "requests": {"max_steps": 2}, "1": {"candidate_steps": [0, 3]}}
    config = parse_config("a file", json.dumps(text).encode())
    assert (config.per_request, config.max_steps) == (False, 2)
    assert (CONFIG.per_request, CONFIG.max_steps) == (True, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requests", {"max_steps": -1}),
        ("requests", {"max_steps": True}),
        ("requests", {"exact": True}),
        ("requests", 3),
        ("per_request", "no"),
    ],
)
def test_a_file_that_says_it_wrong_stops_the_start(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"a file: {key} is .*; allowed: .*; fix: "):
        parse_config("a file", json.dumps({"policy": "goodput", key: value}).encode())
