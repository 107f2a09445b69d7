"""What the start says of a config: which policy serves and why, and what it asks for in vain."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import parse_config
from sglang_adaptive_spec.tiers import chain_tier


def start_block(
    caplog: pytest.LogCaptureFixture, text: str, why_not_packed: str | None = None
) -> str:
    """The block of a server with this config, and confidence that follows packing."""
    from sglang_adaptive_spec.host.reporting.telemetry import Telemetry

    config = parse_config("a.json", text.encode())
    options = SimpleNamespace(
        config=config, startup_tier=chain_tier(3), base="EAGLE", starting_steps=3
    )
    engine: Any = SimpleNamespace(
        ranks=SimpleNamespace(is_first=True), options=options, pool=SimpleNamespace(states=[])
    )
    block: Any = Telemetry.__new__(Telemetry)
    block._engine, block._controller = engine, SimpleNamespace(recorder=None)
    block._kept, block._seeding = {}, None
    block._why_not_packed = why_not_packed
    block._why_no_confidence = why_not_packed and f"no packed rounds: {why_not_packed}"
    with caplog.at_level(logging.INFO):
        block.log_start(None)
    return caplog.text


SLOT = '"1": {"candidate_steps": [1, 3]}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{{{SLOT}}}", "policy goodput (the config names none), config a.json"),
        (f'{{"ema_alpha": 0.2, {SLOT}}}', "policy ema (for its key ema_alpha), config a.json"),
        (f'{{"policy": "goodput", {SLOT}}}', "policy goodput, config a.json"),
    ],
)
def test_the_start_says_which_policy_serves_and_why(
    caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    assert said in start_block(caplog, text)


def test_what_a_config_asks_for_in_vain_is_said(caplog: pytest.LogCaptureFixture) -> None:
    asks = f'{{"packing": true, "confidence": true, {SLOT}}}'
    block = start_block(caplog, asks, "attention backend triton")
    assert "packed rounds: none, though the config asks: attention backend triton" in block
    assert "confidence: none, though the config asks: no packed rounds: attention" in block


def test_what_it_does_not_ask_for_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    assert "none, though" not in start_block(caplog, f"{{{SLOT}}}", "attention backend triton")
    assert "none, though" not in start_block(caplog, f'{{"confidence": true, {SLOT}}}')
