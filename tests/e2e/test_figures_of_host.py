"""The host's own figures of drafts are those of the rounds: its gauges, answers, and bench_serving.

The largest tier has five steps; the server is pinned to less, or takes another every round.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_adaptive_spec.cli import main
from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, adaptive, forced, packed
from tests.e2e.server import Launch, Server
from tests.e2e.traffic import PROMPTS, greedy

METRICS = ("--enable-metrics", "--decode-log-interval", "4")
GAUGES = ("spec_accept_rate", "spec_accept_length", "spec_num_steps", "spec_num_draft_tokens")
SWITCHING = forced("eagle3")
SWITCHING = replace(SWITCHING, name=f"{SWITCHING.name}-figures", args=(*SWITCHING.args, *METRICS))
PACKED = packed("eagle3", overlap=False)  # lengths besides
NEWEST = replace(adaptive("eagle3", *METRICS, host="0.5.23", overlap=True), name="eagle3-figures")

pytestmark = pytest.mark.e2e


def asked(server: Server, text: str) -> dict[str, Any]:
    meta: dict[str, Any] = server.post("/generate", {"text": text, "sampling_params": greedy(64)})[
        "meta_info"
    ]
    return meta


def totals(server: Server) -> tuple[int, int]:
    """Returns the drafts proposed and accepted so far."""
    spec = server.internal_state()["adaptive_spec"]
    return sum(spec["num_proposed_drafts"].values()), sum(spec["num_correct_drafts"].values())


def gauges(server: Server) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(server.get_text("/metrics")):
        for sample in family.samples:
            name = sample.name.removeprefix("sglang:")
            if name in GAUGES:
                found[name] = sample.value
    return found


@pytest.mark.parametrize("launch", [SWITCHING, PACKED], ids=str)
def test_an_answer_has_the_rate_of_its_own_rounds(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    for text in PROMPTS[:3]:
        before = totals(server)
        meta = asked(server, text)
        proposed, correct = (now - then for now, then in zip(totals(server), before, strict=True))
        assert meta["spec_num_proposed_drafts"] == proposed > 0
        assert meta["spec_num_correct_drafts"] == correct
        assert meta["spec_accept_rate"] == pytest.approx(correct / proposed)
        most = meta["spec_verify_ct"] * 5  # what the host assumes
        assert proposed < most


@pytest.mark.parametrize("launch", [NEWEST], ids=str)
def test_gauges_and_answers_are_those_of_the_pinned_tier(fleet: Fleet, launch: Launch) -> None:
    server = fleet.use(launch)
    for steps in (3, 1, 0):
        assert main(["pin", server.url(""), str(steps)]) == 0
        asked(server, PROMPTS[0])  # the interval before the pin ends
        metas = [asked(server, text) for text in PROMPTS[:2]]
        for meta in metas:
            drafted = meta["spec_num_proposed_drafts"]
            assert drafted <= steps * meta["spec_verify_ct"]
            assert drafted >= steps * (meta["spec_verify_ct"] - 2)  # one to catch up, one to end
        shown = gauges(server)
        assert shown["spec_num_steps"] == steps
        assert shown["spec_num_draft_tokens"] == steps + 1
        # Of one interval: tokens a verify are one and the accepted share of the drafts.
        assert shown["spec_accept_length"] == pytest.approx(
            1 + steps * shown["spec_accept_rate"], abs=0.02
        )


@pytest.mark.parametrize("launch", [NEWEST], ids=str)
def test_bench_serving_reads_what_we_count(fleet: Fleet, launch: Launch, tmp_path: Path) -> None:
    server = fleet.use(launch)
    assert main(["pin", server.url(""), "3"]) == 0
    before = server.internal_state()["adaptive_spec"]
    out = tmp_path / "bench.jsonl"
    command = [
        *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"),
        *("--base-url", server.url(""), "--dataset-name", "random-ids"),
        *("--tokenizer", str(MODELS / "target"), "--model", str(MODELS / "target")),
        *("--num-prompts", "12", "--random-input-len", "24", "--random-output-len", "24"),
        *("--random-range-ratio", "1", "--flush-cache", "--output-file", str(out)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    told = json.loads(out.read_text())
    assert (told["completed"], told["total_output_tokens"]) == (12, 12 * 24)
    spec = server.internal_state()["adaptive_spec"]
    rounds, correct = (
        spec[name]["3"] - before[name]["3"] for name in ("num_request_rounds", "num_correct_drafts")
    )
    # The host adds to its lifetime totals at every log line; the last few rounds may be missing.
    assert told["accept_length"] == pytest.approx(1 + correct / rounds, rel=0.1)
