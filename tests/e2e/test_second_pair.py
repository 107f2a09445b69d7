"""Qwen2.5-Coder-1.5B and its head: one command fetches them, and what it prints serves them."""

from pathlib import Path

import pytest

from examples.qwen_coder import fetch_pair
from examples.server import Server
from tests.e2e.launches import ALGORITHM
from tests.e2e.traffic import greedy
from tests.hosts import CACHE

NUM_TOKENS = 24
PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
READY_TIMEOUT_S = 900.0  # 6 GB of weights in float32

pytestmark = pytest.mark.e2e


def test_the_fetched_pair_serves_and_its_drafts_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_pair.main(["--cache", str(CACHE)]) == 0
    arguments = [*capsys.readouterr().out.split(), *ALGORITHM]
    arguments += ["--max-running-requests", "1", "--max-total-tokens", "512"]
    launched = Server.of_sglang([*arguments, "--context-length", "256"], tmp_path / "server.log")
    launched.ready_timeout_s = READY_TIMEOUT_S
    with launched as server:
        asked = {"text": PROMPT, "sampling_params": greedy(NUM_TOKENS)}
        text = server.post("/generate", asked)["text"]
        spec = server.internal_state()["adaptive_spec"]
    print(text, spec["rounds"], spec["accepted_per_position"])
    assert text.startswith(" fibonacci(n-1) + fibonacci(n-2)")
    assert (spec["mode"], spec["base"]) == ("adaptive", "EAGLE3")
    drafting = [tier for tier, count in spec["rounds"].items() if tier != "0" and count]
    num_rounds = sum(spec["num_request_rounds"][tier] for tier in drafting)
    num_held = sum(spec["accepted_per_position"][tier][0] for tier in drafting)
    assert num_rounds > 0
    assert num_held > 0.5 * num_rounds
