"""Commands of an operator: whole numbers in range, all or none; the host's own pass through."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.host.reporting.control import Control, set_internal_state
from sglang_adaptive_spec.loop.commands import PIN, SHOW_MINUTES
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

TIERS = (PLAIN_TIER, chain_tier(3), Tier(3, 4, 8))


class FakeController:
    """Remembers what it was pinned to."""

    def __init__(self) -> None:
        self.pins: list[Tier | None] = []
        self.minutes = SimpleNamespace(rows=lambda most: [str(most)])

    def pin(self, tier: Tier | None) -> None:
        self.pins.append(tier)


def worker() -> Any:
    pool = SimpleNamespace(states=[SimpleNamespace(tier=tier) for tier in TIERS])
    made: Any = SimpleNamespace(pool=pool, controller=FakeController())
    made.control = Control(pool, made.controller)  # type: ignore[arg-type]
    return made


def test_a_tier_is_named_by_its_place_and_minus_one_lets_go() -> None:
    made = worker()
    assert all(made.control.obey({PIN: place}) for place in (2, 0, -1))
    assert made.controller.pins == [TIERS[2], TIERS[0], None]


@pytest.mark.parametrize(
    "commands",
    [
        {PIN: 3},
        {PIN: -2},
        {PIN: 1.5},
        {PIN: float("nan")},
        {PIN: float("inf")},
        {SHOW_MINUTES: 0},
        {SHOW_MINUTES: 1e9},
        {PIN: 1, "pp_max_micro_batch_size": 8},
        {PIN: 1, SHOW_MINUTES: -1},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_whole_and_logged(
    commands: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    made = worker()
    assert not made.control.obey(commands)
    assert made.controller.pins == []
    assert made.control.minutes() is None
    assert "allowed" in caplog.text


def test_minutes_are_shown_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker()
    assert made.control.minutes() is None
    assert made.control.obey({SHOW_MINUTES: 7.0})
    assert made.control.minutes() == ["7"]
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert made.control.minutes() is None


def test_the_host_s_commands_are_the_host_s() -> None:
    request = SimpleNamespace(server_args={"pp_max_micro_batch_size": 8})
    scheduler = SimpleNamespace(draft_worker=worker())
    assert set_internal_state(lambda *_: "host", scheduler, request) == "host"


def test_a_static_server_refuses(caplog: pytest.LogCaptureFixture) -> None:
    request = SimpleNamespace(server_args={PIN: 1})
    scheduler = SimpleNamespace(draft_worker=SimpleNamespace())
    with caplog.at_level(logging.WARNING):
        assert not set_internal_state(lambda *_: "host", scheduler, request).updated
    assert "static depth" in caplog.text
