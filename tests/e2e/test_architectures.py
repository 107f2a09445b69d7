"""Every kind of model that SGLang drafts for, in miniature, with the default config.

Each server measures its round times at the start, then changes the tier in every round under the
host's own checks, and gives exactly the text of no speculation. `make test-full` runs them.
"""

import base64
import io
import random

import pytest
from PIL import Image

from tests.e2e.fleet import Fleet
from tests.e2e.launches import ALGORITHM, MODELS, TINY_SERVED, draft
from tests.e2e.oracle import NUM_COMPARED, greedy_by_transformers
from tests.e2e.server import OURS, Launch, Server
from tests.e2e.traffic import (
    PROMPTS,
    Answers,
    batch_answers,
    check_identical,
    check_idle_and_whole,
    greedy,
)

NUM_STEPS = {"0", "1", "2", "3", "5", "7", "10"}  # of the default config
MIN_ROUNDS = 3  # at every tier, in two batches
MIN_ACCEPTED = 0.2  # drafts a round
MIN_DISTINCT = 40  # tokens of an answer
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
# On this host recurrent layers have neither a prefix cache nor states in bfloat16 that round alike.
RECURRENT = ("--disable-radix-cache", "--mamba-ssm-dtype", "float32")


def architecture(
    name: str,
    draft_name: str | None,
    *served: str,
    host: str = "0.5.21",
    walk: str = "forced_switch",
) -> Launch:
    """ADAPTIVE_EAGLE at another tier in every round; no draft name: the target's own layer."""
    target = ("--model-path", str(MODELS / name), *TINY_SERVED, *served)
    arguments = (*ALGORITHM, *(() if draft_name is None else draft(draft_name)))
    plugins = (OURS, walk)
    return Launch(name, target, arguments, host=host, overlap=True, plugins=plugins, strict=True)


CASES = [
    architecture("gemma3", "gemma3-eagle3"),
    # Without lengths on the CPU, from which the host would compute positions at zero steps.
    architecture("qwen2.5-vl", "qwen2.5-vl-eagle3", walk="hidden_rows"),
    architecture("qwen3-moe", "eagle3"),
    architecture("qwen3-vl", "qwen3-vl-eagle3", walk="hidden_rows"),
    architecture("qwen2", "eagle3"),
    architecture("qwen3", "eagle3"),
    architecture("qwen3-next", "eagle3", *RECURRENT),
    architecture("mtp", "eagle3"),  # DeepSeek-V3, and Kimi-K2, which is one
    architecture("glm4-moe", None),
    architecture("mimo", "mimo"),
    architecture("gpt-oss", "eagle3", "--disable-hybrid-swa-memory"),
    architecture("gpt-oss", "eagle3", host="0.5.23"),  # the windows have a pool of their own
    # The draft relays its probabilities: SGLang wants one that knows all of the target's tokens.
    architecture("target", "eagle", "--speculative-use-rejection-sampling"),
]


# What of the CPU host only these use: windows, sinks, recurrent layers.
ON_NEW_KERNELS = ("gemma3", "gpt-oss", "qwen3-next")
SEEING = {launch.target for launch in CASES if launch.name.endswith("-vl")}

pytestmark = pytest.mark.e2e
ALL = pytest.mark.parametrize("launch", CASES, ids=str)


@ALL
def test_text_equals_no_speculation(fleet: Fleet, launch: Launch) -> None:
    got, reference = fleet.compare(launch, everything)
    distinct = {name: len(set(ids)) for name, ids in reference.items()}
    assert min(distinct.values()) >= MIN_DISTINCT, distinct
    check_identical(got, reference)


@pytest.mark.parametrize(
    "launch", [launch for launch in CASES if launch.name in ON_NEW_KERNELS], ids=str
)
def test_the_reference_is_what_transformers_computes(fleet: Fleet, launch: Launch) -> None:
    reference = fleet.ask_once(launch.reference(), everything)
    for number in (0, 5):  # a short prompt, and one longer than a window
        expected = greedy_by_transformers(MODELS / launch.name, PROMPTS[number])
        assert reference[f"batch {number}"][:NUM_COMPARED] == expected


def everything(server: Server) -> Answers:
    """Asks all prompts in one batch and, where the target sees them, about images."""
    collected = batch_answers(server)
    if server.launch.target in SEEING:
        collected |= image_answers(server)
        assert collected["image 0"] != collected["image 1"]  # or the images are not seen
    return collected


def image_answers(server: Server) -> Answers:
    """Asks about two images and, in the same batch, about none."""
    texts = [f"{IMAGE}what is this?", f"{IMAGE}what is this?", "what is this?"]
    images = [[random_image(number, 56 + 28 * number)] for number in range(2)]
    body = {"text": texts, "image_data": [*images, None], "sampling_params": greedy()}
    replies = server.post("/generate", body)
    return {f"image {number}": reply["output_ids"] for number, reply in enumerate(replies)}


def random_image(seed: int, width: int) -> str:
    """Returns a PNG of colourful squares as a data URL."""
    small = Image.frombytes("RGB", (4, 4), random.Random(seed).randbytes(4 * 4 * 3))
    png = io.BytesIO()
    small.resize((width, 84), Image.Resampling.NEAREST).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


@ALL
def test_every_tier_ran_accepted_drafts_and_was_timed_at_the_start(
    fleet: Fleet, launch: Launch
) -> None:
    fleet.ask_once(launch, everything)
    server = fleet.use(launch)
    server.post("/generate", {"text": list(PROMPTS), "sampling_params": greedy()})
    check_idle_and_whole(server)
    spec = server.internal_state()["adaptive_spec"]
    assert (spec["mode"], spec["reason"]) == ("adaptive", None)
    assert spec["seeding"]["source"] == "measured"
    assert spec["fallbacks"] == {"policy_error": 0, "feedback_mismatch": 0}
    assert set(spec["rounds"]) == NUM_STEPS
    assert min(spec["rounds"].values()) >= MIN_ROUNDS, spec["rounds"]
    drafting = [spec["num_request_rounds"][steps] for steps in NUM_STEPS - {"0"}]
    assert sum(spec["num_correct_drafts"].values()) >= MIN_ACCEPTED * sum(drafting)
