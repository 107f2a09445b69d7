"""What the verbs tell a server: a pin that is seen to hold, minutes, and one sentence if not."""

import json
from typing import Any

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.loop.commands import PIN, SHOW_MINUTES
from sglang_adaptive_spec.operate import server as operate_server
from sglang_adaptive_spec.operate.server import ServerError, minutes
from tests.operate.fake_server import info, serving

LABELS = ("0", "3", "3-4-8")


class FakeServer:
    """Two replicas that obey, unless told not to."""

    def __init__(self, obeys: bool = True) -> None:
        self.obeys = obeys
        self.pinned: str | None = None
        self.shown: list[str] | None = None

    def info(self) -> Any:
        state = {"mode": "adaptive", "rounds": dict.fromkeys(LABELS, 0), "pinned": self.pinned}
        if self.shown is not None:
            state["minutes"] = self.shown
        return info(state, state)

    def obey(self, commands: dict[str, float]) -> list[bool]:
        if PIN in commands and self.obeys:
            place = int(commands[PIN])
            self.pinned = LABELS[place] if place >= 0 else None
        if SHOW_MINUTES in commands:
            self.shown = [json.dumps({"start": 60 * n}) for n in range(int(commands[SHOW_MINUTES]))]
        return [True, True]


def test_pin_names_a_tier_by_its_label_and_auto_lets_it_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = FakeServer()
    with serving(server.info, obey=server.obey) as url:
        assert main(["pin", url, "3-4-8"]) == 0
        assert server.pinned == "3-4-8"
        assert main(["pin", url, "auto"]) == 0
        assert server.pinned is None
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"{url}, 2 replicas is pinned to 3-4-8; `auto` lets it adapt again",
        f"{url}, 2 replicas adapts",
    ]


def test_a_tier_that_the_server_lacks_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = FakeServer()
    with serving(server.info, obey=server.obey) as url:
        assert main(["pin", url, "5"]) == 1
    assert "has no tier 5; allowed: auto, 0, 3, 3-4-8; fix" in capsys.readouterr().err
    assert server.pinned is None


def test_a_server_that_says_yes_and_does_not_obey_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate_server, "PIN_TIMEOUT_S", 0.2)
    server = FakeServer(obeys=False)
    with serving(server.info, obey=server.obey) as url:
        assert main(["pin", url, "3"]) == 1
    assert "did not obey" in capsys.readouterr().err


def test_an_older_server_refuses_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeServer().info) as url:
        assert main(["pin", url, "3"]) == 1
    assert "refused {'adaptive_spec_pin': 1}" in capsys.readouterr().err


def test_a_key_is_asked_for_and_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    with serving(server.info, key="secret", obey=server.obey) as url:
        assert main(["pin", url, "3"]) == 1
        assert "fix: pass --api-key" in capsys.readouterr().err
        assert main(["pin", url, "3", "--api-key", "secret"]) == 0


def test_minutes_come_from_every_replica() -> None:
    server = FakeServer()
    with serving(server.info, obey=server.obey) as url:
        first, second = minutes(url, 3)
    assert first == second == [{"start": 0}, {"start": 60}, {"start": 120}]


def test_a_server_that_keeps_no_minutes_says_so() -> None:
    server = FakeServer()
    with (
        serving(server.info, obey=lambda _: [True, True]) as url,
        pytest.raises(ServerError, match="keeps no minutes"),
    ):
        minutes(url, 3)
