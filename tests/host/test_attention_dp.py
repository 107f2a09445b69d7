"""Which servers with attention DP stay static, and why."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config

pytestmark = pytest.mark.usefixtures("plugins_loaded")

HARMLESS = {
    "disaggregation_mode": "null",
    "moe_a2a_backend": "none",
    "speculative_moe_a2a_backend": None,
}


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"enable_dp_attention": True, "dp_size": 4}, 4),  # up to 0.5.21
        ({"enable_dp_attention": False, "dp_size": 4}, 1),
        ({"enable_dp_attention": False, "dp_size": 1, "attn_dp_size": 4}, 4),  # since 0.5.22
        ({"enable_dp_attention": False, "dp_size": 4, "attn_dp_size": 1}, 1),
    ],
)
def test_ranks_with_requests_of_their_own_are_counted(view: Any, expected: int) -> None:
    from sglang_adaptive_spec.host.server_args import num_replicas

    assert num_replicas(SimpleNamespace(**view)) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"moe_a2a_backend": "deepep"}, None),
        ({"moe_a2a_backend": "mooncake"}, "--moe-a2a-backend mooncake was never run"),
        ({"speculative_moe_a2a_backend": "nixl"}, "--speculative-moe-a2a-backend nixl"),
        ({"disaggregation_mode": "decode"}, "PD decode node with attention DP"),
    ],
)
def test_settings_that_were_never_run_are_static(fields: Any, words: str | None) -> None:
    from sglang_adaptive_spec.host.launch.attention_dp import joint_reason

    reason = joint_reason(SimpleNamespace(**{**HARMLESS, **fields}), load_config(None))
    assert reason is None if words is None else re.search(words, str(reason))


@pytest.mark.parametrize("value", ["1", "true", "0", ""])
@pytest.mark.parametrize(
    "name", ["SGLANG_SCHEDULER_SKIP_ALL_GATHER", "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"]
)
def test_a_variable_that_keeps_ranks_from_agreeing_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    from sglang_adaptive_spec.host.launch.attention_dp import joint_reason

    monkeypatch.setenv(name, value)
    reason = joint_reason(SimpleNamespace(**HARMLESS), load_config(None))
    assert (f"{name}=1" in str(reason)) is (value in ("1", "true"))


def test_trees_and_other_policies_decide_for_one_batch() -> None:
    from sglang_adaptive_spec.host.launch.attention_dp import joint_reason

    view: Any = SimpleNamespace(**HARMLESS)
    assert "policy ema" in str(joint_reason(view, load_config("conservative")))
    trees: Any = SimpleNamespace(policy="goodput", tiers=[SimpleNamespace(topk=4)])
    assert "lists trees" in str(joint_reason(view, trees))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"moe_a2a_backend": "deepep"}, 128),
        ({"speculative_moe_a2a_backend": "deepep"}, 128),
        ({}, None),
        ({"moe_a2a_backend": "deepep", "attn_dp_size": 1}, None),
    ],
)
def test_deepep_holds_so_many_tokens_of_a_rank(fields: Any, expected: int | None) -> None:
    from sglang_adaptive_spec.host.launch.attention_dp import most_tokens, within_limit

    view: Any = SimpleNamespace(**{**HARMLESS, "attn_dp_size": 2, **fields})
    assert most_tokens(view) == expected
    config = load_config(None)
    limited = within_limit(config, expected)
    assert (limited is config) is (expected is None)
    if expected is not None:
        for size in range(1, expected + 1):
            verified = [size * tier.num_draft_tokens for tier in limited.ladder.of(size)]
            assert max(verified) <= expected
        assert limited.ladder.of(4) == config.ladder.of(4)
