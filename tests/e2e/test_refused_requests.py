"""A request that no round of a server could serve exactly is refused, and all others are served."""

import json
import urllib.error
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.asking_more import FREQUENT, ask, disallow
from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIGS, TINY, adaptive
from tests.e2e.server import Server
from tests.e2e.traffic import PROMPTS, check_idle_and_whole, greedy

TARGET = (*TINY, "--enable-custom-logit-processor")
NO_ZERO = replace(
    adaptive("eagle", overlap=True, config=CONFIGS / "no_zero.json"),
    name="eagle-no-zero",
    target=TARGET,
)

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("launch", [NO_ZERO], ids=str)]


def under_a_rule(stream: bool) -> dict[str, Any]:
    rule = disallow(FREQUENT)
    return {
        "text": PROMPTS[0],
        "stream": stream,
        "custom_logit_processor": rule["custom_logit_processor"],
        "sampling_params": greedy(8, **rule["params"]),
    }


def refusal(server: Server, body: dict[str, Any]) -> tuple[int, str]:
    """Returns the status and the sentence that a request is refused with."""
    if body["stream"]:  # the status of the answer was sent before
        reason = ask(server, body)["meta_info"]["finish_reason"]
        return reason["status_code"], reason["message"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/generate", body)
    return caught.value.code, json.loads(caught.value.read())["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_rule_for_every_token_is_refused_where_batches_may_lack_zero_steps(
    server: Server, stream: bool
) -> None:
    code, sentence = refusal(server, under_a_rule(stream))
    assert code == 400
    assert "zero steps (0) are not served in every batch-size slot" in sentence
    assert server.log_text().count("ADAPTIVE_EAGLE refuses requests with custom logit") == 1


def test_everything_else_is_served(fleet: Fleet, server: Server) -> None:
    body = {"text": PROMPTS[0], "sampling_params": greedy(8)}
    expected = ask(fleet.use(server.launch.reference()), body)["output_ids"]
    assert ask(server, body)["output_ids"] == expected
    check_idle_and_whole(server)
