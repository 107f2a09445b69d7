"""Our Prometheus counters, as the server exports them and as /server_info gives them."""

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server import Server

PREFIX = "sglang:adaptive_spec_"
EXPORT_TIMEOUT_S = 60.0  # counters are exported once a second, by a thread


def wait_for_export(server: Server, expected: Mapping[tuple[str, ...], float]) -> None:
    """Waits until the rounds of an idle server's counters are those ``expected``, or too long."""
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    rounds = {name: total for name, total in expected.items() if name[0] == "rounds"}
    while time.monotonic() < deadline and not rounds.items() <= exported(server).items():
        time.sleep(0.2)


def exported(server: Server) -> dict[tuple[str, ...], float]:
    """Returns our counters that are not zero: (name, its labels) -> total."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(server.get_text("/metrics")):
        for sample in family.samples:
            if not sample.name.startswith(PREFIX) or not sample.name.endswith("_total"):
                continue
            ours = ("tier", "position", "reason")
            labels = [sample.labels[name] for name in ours if name in sample.labels]
            key = (sample.name.removeprefix(PREFIX).removesuffix("_total"), *labels)
            found[key] = found.get(key, 0) + sample.value
    return {key: total for key, total in found.items() if total}


def expected_counters(spec: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Returns the same from /server_info."""
    expected: dict[tuple[str, ...], float] = {}
    for steps in spec["rounds"]:
        expected["rounds", steps] = spec["rounds"][steps]
        expected["request_rounds", steps] = spec["num_request_rounds"][steps]
        expected["proposed_drafts", steps] = spec["num_proposed_drafts"][steps]
        for position, total in enumerate(spec["accepted_per_position"][steps], start=1):
            expected["accepted_drafts", steps, str(position)] = total
    for steps, timed in spec["timed_rounds"].items():
        expected["timed_rounds", steps] = timed["num_rounds"]
        expected["timed_tokens", steps] = timed["tokens"]
        expected["timed_ms", steps] = timed["ms"]
    expected["catch_up_rounds",] = spec["catch_ups"]["num_timed_rounds"]
    expected["catch_up_ms",] = spec["catch_ups"]["ms"]
    for reason, total in spec["switches"].items():
        expected["switches", reason] = total
    for reason, total in spec["requests"].items():
        expected["requests", reason] = total
    for reason, total in spec["fallbacks"].items():
        expected["fallbacks", reason] = total
    expected["fallbacks", "disagreement"] = spec["disagreements"]
    return {key: total for key, total in expected.items() if total}
