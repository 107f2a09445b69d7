"""The demo's arms: six servers that differ in how they speculate and in nothing else."""

import json
from pathlib import Path

from examples.demo.report import ADAPTIVE, EMA, GOODPUT, REFERENCE
from examples.demo.run import CONFIG, GOODPUT_CONFIG, STATIC_STEPS, arms
from sglang_adaptive_spec.config.schema import load_config

MODEL = Path("model")


def test_the_arms_are_no_speculation_every_static_depth_and_both_policies() -> None:
    static = [f"static {steps}" for steps in STATIC_STEPS]
    assert list(arms(MODEL)) == [REFERENCE, *static, EMA, GOODPUT]
    assert set(ADAPTIVE) <= arms(MODEL).keys()


def test_every_arm_starts_from_the_arguments_of_no_speculation() -> None:
    by_name = arms(MODEL)
    base = by_name.pop(REFERENCE)
    assert not any("speculative" in argument for argument in base)
    assert all(args[: len(base)] == base for args in by_name.values())


def test_the_adaptive_arms_differ_in_the_config_alone() -> None:
    ema, goodput = arms(MODEL)[EMA], arms(MODEL)[GOODPUT]
    assert ema[:-1] == goodput[:-1]
    assert load_config(ema[-1]).policy == "ema"
    assert load_config(goodput[-1]).policy == "goodput"


def test_both_policies_choose_among_the_static_depths_and_zero() -> None:
    for path in (CONFIG, GOODPUT_CONFIG):
        assert load_config(str(path)).candidate_steps == (0, *STATIC_STEPS)


def test_goodput_is_told_its_candidates_and_nothing_else() -> None:
    written = json.loads(GOODPUT_CONFIG.read_text())
    assert written == {"policy": "goodput", "1": {"candidate_steps": [0, 1, 3, 5]}}
