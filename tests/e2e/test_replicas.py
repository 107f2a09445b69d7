"""Two data-parallel replicas: each decides for itself."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.e2e.counters import expected_counters, exported, wait_for_export
from tests.e2e.fleet import Fleet
from tests.e2e.launches import NUM_STEPS, forced
from tests.e2e.server import Launch
from tests.e2e.traffic import answers, check_identical

ONE = forced("eagle3", host="0.5.23", overlap=True)
REPLICAS = ("--dp-size", "2", "--enable-metrics")
TWO = replace(ONE, name=f"{ONE.name}-dp2", args=(*ONE.args, *REPLICAS))

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("launch", [TWO], ids=str)]


def test_every_greedy_answer_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    check_identical(*fleet.compare(launch, answers))


def test_both_replicas_serve_at_every_tier_and_their_counters_add_up(
    fleet: Fleet, launch: Launch
) -> None:
    fleet.ask_once(launch, answers)
    server = fleet.use(launch)
    states = server.get("/server_info")["internal_states"]
    replicas = [state["adaptive_spec"] for state in states]
    assert [spec["mode"] for spec in replicas] == ["adaptive", "adaptive"]
    for spec in replicas:
        assert set(spec["rounds"]) == {str(steps) for steps in NUM_STEPS}
        assert min(spec["rounds"].values()) > 0, spec["rounds"]
        assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    total: Counter[tuple[str, ...]] = Counter()
    for spec in replicas:
        total.update(expected_counters(spec))
    wait_for_export(server, total)
    assert exported(server) == pytest.approx(total, abs=1e-2)  # ms are shown rounded
