"""`tune` of the running pair: its minutes, its round times, and a file that a server takes."""

import json
from pathlib import Path

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.operate.tune.source import LEAST_ROUNDS
from tests.e2e.fleet import Fleet
from tests.e2e.server import Launch
from tests.e2e.test_real_pair import DEFAULT, real_answers

MOST_REPEATS = 20

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("launch", [DEFAULT], ids=str)
def test_a_running_server_is_tuned(
    fleet: Fleet, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fleet.use(launch)
    for _ in range(MOST_REPEATS):
        spec = server.internal_state()["adaptive_spec"]
        if sum(spec["rounds"].values()) > LEAST_ROUNDS:
            break
        real_answers(server)
    url, out = server.url(""), tmp_path / "adaptive_spec.json"
    capsys.readouterr()
    assert (
        main(["tune", url, "--rounds", str(LEAST_ROUNDS), "--lean", "--json", "--out", str(out)])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["costs"] == f"measured by {url}"
    assert [tier["steps"] for tier in data["tiers"]] == [0, 1, 2, 3, 5, 7, 10]
    assert all(tier["build_s"] >= 0 for tier in data["tiers"])
    assert data["gain"]["low"] <= data["gain"]["mean"] <= data["gain"]["high"]
    is_other = data["ranges"] != data["default"]
    assert out.exists() == is_other
    if is_other:
        assert load_config(str(out)).ladder.tiers
