"""The real server on this package: drafts change speed, never text."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Launch, Server

pytestmark = pytest.mark.e2e

REPO = Path(__file__).resolve().parents[2]
PROMPTS = ("The quick brown fox", "hello", "def f(x):\n    return", "0123456789 " * 12, "a")
NUM_TOKENS = 96


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    spec = importlib.util.spec_from_file_location("tiny_models", REPO / "tools" / "tiny_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folders: dict[str, Path] = module.make_tiny_models(tmp_path_factory.mktemp("models"))
    return folders


def generate(name: str, models: dict[str, Path], draft: str | None, overlap: bool) -> Any:
    """Answers of one server, each prompt alone and then all as a batch, and its state."""
    args = ["--model-path", str(models["target"]), "--max-total-tokens", "8192"]
    args += ["--max-running-requests", "8", "--context-length", "1024"]
    if draft == "ngram":
        args += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]
    elif draft:
        args += ["--speculative-algorithm", draft.upper()]
        args += ["--speculative-draft-model-path", str(models[draft])]
        args += ["--speculative-eagle-topk", "1", "--speculative-num-steps", "3"]
        args += ["--speculative-num-draft-tokens", "4"]
    server = Server.start(Launch(name, tuple(args), overlap=overlap, plugins=()))
    try:
        server.wait_ready()
        sampling = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
        answers = [
            server.post("/generate", {"text": prompt, "sampling_params": sampling})
            for prompt in PROMPTS
        ]
        answers += server.post("/generate", {"text": list(PROMPTS), "sampling_params": sampling})
        return answers, server.get("/server_info")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def reference(models: dict[str, Path]) -> list[list[int]]:
    answers, _ = generate("cpu-host-none", models, None, overlap=False)
    return [answer["output_ids"] for answer in answers]


def test_the_reference_is_not_degenerate(reference: list[list[int]]) -> None:
    for ids in reference:
        assert len(ids) == NUM_TOKENS
        assert len(set(ids)) >= 50


@pytest.mark.parametrize(
    ("draft", "overlap"), [("eagle", False), ("eagle", True), ("eagle3", True)]
)
def test_speculation_gives_the_same_tokens_in_fewer_rounds(
    draft: str, overlap: bool, models: dict[str, Path], reference: list[list[int]]
) -> None:
    answers, info = generate(f"cpu-host-{draft}", models, draft, overlap)
    assert [answer["output_ids"] for answer in answers] == reference
    assert info["disable_overlap_schedule"] is not overlap
    for answer in answers:
        accept_length = answer["meta_info"]["spec_accept_length"]
        # 4 would mean that every draft is right, 1 that none is: neither would test much.
        assert 1.4 < accept_length < 3.5


@pytest.mark.parametrize("overlap", [False, True])
def test_ngrams_give_the_same_tokens_and_texts_that_repeat_in_fewer_rounds(
    overlap: bool, models: dict[str, Path], reference: list[list[int]]
) -> None:
    answers, _ = generate("cpu-host-ngram", models, "ngram", overlap)
    assert [answer["output_ids"] for answer in answers] == reference
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in answers]
    first, again = lengths[0], lengths[len(PROMPTS) :]  # nothing was seen before the first
    assert min(again) > 4 > first
