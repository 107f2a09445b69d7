"""An operator pins a tier of a running server, lets it go, and reads the minutes; text stays."""

import json
import time
from dataclasses import replace

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.operate.server import minutes
from tests.e2e.fleet import Fleet
from tests.e2e.launches import adaptive
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import answers, batch_answers, check_identical

# A server of its own: who pins changes what the other tests count.
ONE_RANK = replace(adaptive("eagle3", overlap=True), name="eagle3-pin")
# Under the overlap schedule a decode round is launched before the host knows of the end.
WITHOUT_OVERLAP = replace(adaptive("eagle3", overlap=False), name="eagle3-idle")
TWO_RANKS = replace(adaptive("eagle3", "--tp-size", "2", overlap=True), name="eagle3-pin-tp2")

IDLE_S = 4.0  # between health checks, which take less than a tenth of it

pytestmark = pytest.mark.e2e


def rounds_by_steps(server: Server) -> dict[str, int]:
    return dict(server.internal_state()["adaptive_spec"]["rounds"])


def grown(server: Server, before: dict[str, int]) -> set[str]:
    """Returns the tiers that ran since."""
    after = rounds_by_steps(server)
    return {steps for steps in after if after[steps] > before[steps]}


@pytest.mark.parametrize("launch", [ONE_RANK], ids=str)
def test_pinned_it_runs_that_tier_alone_and_the_text_stays(
    fleet: Fleet, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = fleet.ask_once(launch.reference(), answers)
    server = fleet.use(launch)
    url = server.url("")
    for steps in ("3", "0"):
        assert main(["pin", url, steps]) == 0
        before = rounds_by_steps(server)
        batch = batch_answers(server)
        check_identical(batch, {name: reference[name] for name in batch})
        # A server that was drafting catches nothing up; one at zero steps does, in one round more.
        assert steps in grown(server, before) <= {steps, "0"}
        state = server.internal_state()["adaptive_spec"]
        assert (state["pinned"], state["current_tier"]) == (steps, steps)
    assert main(["watch", url, "--interval", "0.2", "--lines", "1"]) == 0
    assert "0 (pinned)" in capsys.readouterr().out
    assert main(["pin", url, "auto"]) == 0
    state = server.internal_state()["adaptive_spec"]
    assert (state["pinned"], state["switches"]["pin"] >= 1) == (None, True)
    assert main(["pin", url, "4"]) == 1
    assert "allowed: auto, 0, 1, 3, 5" in capsys.readouterr().err


@pytest.mark.parametrize("launch", [ONE_RANK], ids=str)
def test_minutes_say_what_the_server_did(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)  # four prefills and more
    server = fleet.use(launch)
    (rows,) = minutes(server.url(""), 10)
    total = server.internal_state()["adaptive_spec"]
    for name in total["rounds"]:
        assert sum(row.get("rounds", {}).get(name, 0) for row in rows) == total["rounds"][name]
    # A row leaves zeros out: a minute may end between a prefill and its rounds.
    assert sum(row.get("prefills", {"number": 0})["number"] for row in rows) >= 4
    assert all(0 < row["seconds"] <= 60 for row in rows)
    assert len(json.dumps(rows[-1])) < 4000


@pytest.mark.parametrize("launch", [WITHOUT_OVERLAP], ids=str)
def test_an_idle_server_does_not_prefill(fleet: Fleet, launch: Launch) -> None:
    """A health check is a prefill of one token, which no round follows."""
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    before = prefills(server)
    for _ in range(2):
        server.get_text("/health_generate")
        time.sleep(IDLE_S)
    after = prefills(server)
    assert after[0] >= before[0] + 2
    assert after[1] - before[1] < 1e3 * IDLE_S  # the first one alone lasted as long


def prefills(server: Server) -> tuple[int, float]:
    """Returns how many there were, and what they took, in ms."""
    (rows,) = minutes(server.url(""), 10)
    found = [row.get("prefills", {"number": 0, "ms": 0.0}) for row in rows]
    return sum(each["number"] for each in found), sum(each["ms"] for each in found)


@pytest.mark.parametrize("launch", [TWO_RANKS], ids=str)
def test_two_ranks_are_pinned_before_the_same_round(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.compare(launch, answers)[1]
    server = fleet.use(launch)
    url, labels = server.url(""), list(rounds_by_steps(server))
    for steps in (*labels, *reversed(labels), "auto"):
        assert main(["pin", url, steps]) == 0
        check_identical(answers(server), reference)
