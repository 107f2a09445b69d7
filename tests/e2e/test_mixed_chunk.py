"""--enable-mixed-chunk: decode rows that ride along with a prefill leave no gap in the draft's KV.

The script is that of test_zero_steps.py; during the visit a guest comes, whose prefill is mixed
with the visitors' rows. Rounds after the visit must begin with the hidden state of those who never
left, at every output position that both arms start a round at.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import adaptive
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import PROMPTS
from tests.e2e.visits import MAX_RELATIVE_NOISE, relative_difference

NUM_TOKENS = 120
GUEST = "who is there? " * 30
MIXED = ("--enable-mixed-chunk", "--chunked-prefill-size", "64")
LAUNCH = replace(
    adaptive("eagle3", *MIXED, host="0.5.23", overlap=True),
    name="eagle3-mixed",
    plugins=(OURS, "visit_mixed"),
    strict=True,
)
MIN_COMPARED = 60

pytestmark = pytest.mark.e2e


def ask(server: Server, name: str) -> list[list[int]]:
    """Sends the prompts and a guest at once; the guest waits at the server."""
    rids = [f"{name}-{number}-of-{len(PROMPTS)}" for number in range(len(PROMPTS))]
    sampling = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {"text": [*PROMPTS, GUEST], "rid": [*rids, f"guest-of-{name}"]}
    replies = server.post("/generate", {**body, "sampling_params": sampling})
    return [reply["output_ids"] for reply in replies]


def by_position(starts: list[list[Any]]) -> dict[int, tuple[int, list[float]]]:
    return {start[0]: (start[1], start[2:]) for start in starts}


@pytest.mark.parametrize("launch", [LAUNCH], ids=str)
def test_decode_rows_of_a_mixed_batch_leave_no_gap(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), lambda server: ask(server, "none"))
    server = fleet.use(launch)
    visit = ask(server, "visit")
    debts = server.internal_state()["e2e_mixed"]
    assert any(max(of_batch) > 1 for of_batch in debts), "no mixed batch met a draft behind"
    assert visit == ask(server, "stay") == reference
    starts = server.internal_state()["e2e_starts"]
    noise = []
    for number in range(len(PROMPTS)):
        here, there = (
            by_position(starts[f"{name}-{number}-of-{len(PROMPTS)}"]) for name in ("visit", "stay")
        )
        resumed = 1 + max(place for place, (steps, _) in here.items() if steps == 0)
        shared = [place for place in here.keys() & there.keys() if place >= resumed]
        noise += [relative_difference(here[place][1], there[place][1]) for place in shared]
    assert len(noise) >= MIN_COMPARED
    assert max(noise) < MAX_RELATIVE_NOISE
