"""A draft inside the target: DeepSeek-V3's MTP layer, on latent attention and with experts.

That switching keeps the text is tested beside the other trees (test_trees.py); here, that what it
is compared with is right: a CPU host that attends wrongly would do so in both servers.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.fleet import Fleet
from tests.e2e.launches import MODELS, forced_mtp
from tests.e2e.oracle import NUM_COMPARED, greedy_by_transformers
from tests.e2e.server import Launch
from tests.e2e.traffic import PROMPTS, answers
from tools.tiny_models import HIDDEN
from tools.tiny_mtp import SMALL_WIDTHS, make_tiny_mtp

SWITCHING = forced_mtp(host="0.5.21", overlap=True)

pytestmark = pytest.mark.e2e


def test_a_hidden_state_that_holds_all_repeatedly_gives_the_same_logits(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    logits = []
    for copies in (1, 4):
        folder = make_tiny_mtp(tmp_path / str(copies), SMALL_WIDTHS._replace(copies=copies))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert model.config.hidden_size == copies * HIDDEN
        logits.append(model(torch.arange(5, 60)[None]).logits)
    torch.testing.assert_close(*logits, atol=1e-2, rtol=0)  # of up to 57


@pytest.mark.parametrize("launch", [SWITCHING], ids=str)
def test_the_reference_is_what_transformers_computes(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), answers)
    for number in (0, 1):
        expected = greedy_by_transformers(MODELS / "mtp", PROMPTS[number])
        assert reference[f"batch {number}"][:NUM_COMPARED] == expected
        assert len(set(expected)) > NUM_COMPARED // 4


@pytest.mark.parametrize("launch", [SWITCHING], ids=str)
def test_the_draft_is_the_targets_own_layer(fleet: Fleet, launch: Launch) -> None:
    fleet.ask_once(launch, answers)
    state = fleet.use(launch).internal_state()
    spec = state["adaptive_spec"]
    assert (spec["mode"], spec["base"]) == ("adaptive", "EAGLE")
    assert "--speculative-draft-model-path" not in launch.args
    accepted, rounds = spec["accepted_per_position"]["3"][0], spec["num_request_rounds"]["3"]
    assert accepted > 0.2 * rounds > 0, "the layer knows the cycle, so it is right now and then"
