"""A real Prometheus that scrapes a server has data for every panel, alert and variable we ship."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIGS, adaptive
from tests.e2e.server import Launch, free_port
from tests.e2e.traffic import answers, greedy
from tests.examples.test_grafana import FOLDER, queries

SERVED = adaptive("eagle3", "--enable-metrics", overlap=True, config=CONFIGS / "goodput.json")
READY_S, DATA_S = 30.0, 90.0
# An alert that does not fire yields nothing; what it compares does.
COMPARISONS = (" > ", " < ", " >= ", " <= ")

pytestmark = pytest.mark.e2e


@pytest.fixture
def prometheus(server: Any, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus with the shipped configuration, which scrapes the server."""
    assert shutil.which("prometheus"), "prometheus is missing: Debian has it"
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [server.url("").removeprefix("http://")]}]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        *("prometheus", f"--config.file={path}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(arguments, stderr=log) as process:
        try:
            wait_until_ready(address, process)
            yield address
        finally:
            process.terminate()


@pytest.mark.parametrize("launch", [SERVED], ids=str)
def test_every_panel_alert_and_variable_has_data(
    fleet: Fleet, launch: Launch, prometheus: str
) -> None:
    server = fleet.use(launch)
    limited = greedy(8, custom_params={"adaptive_spec": {"max_steps": 1}})
    empty = dict(queries())
    assert len(empty) > 25
    del empty["AdaptiveSpecStatic"]  # no data unless it fires
    deadline = time.monotonic() + DATA_S
    while empty and time.monotonic() < deadline:
        answers(server)
        server.post("/generate", {"text": "a", "sampling_params": limited})
        empty = {asks: expr for asks, expr in empty.items() if not has_data(prometheus, expr)}
    assert not empty
    rules = get(prometheus, "/api/v1/rules")["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} == {"ok"}


def has_data(address: str, expr: str) -> bool:
    """Returns whether an expression yields a sample, a comparison with a threshold left out."""
    for comparison in COMPARISONS:
        expr = expr.replace(comparison, f"{comparison}bool ")
    return bool(get(address, "/api/v1/query?" + urllib.parse.urlencode({"query": expr}))["result"])


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
        return json.loads(reply.read())["data"]


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"Prometheus is not ready within {READY_S:.0f} s")
