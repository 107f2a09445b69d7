"""`check -- ARGUMENTS`: what a launch would serve, or why not, before anything is loaded."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.operate.tune.blocks import Candidate
from sglang_adaptive_spec.operate.tune.text import document
from tests.operate.test_tune import answer, source_of

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """The host sets logging up when it reads arguments; what was there comes back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def launch(models: dict[str, str], *more: str, draft: str = "eagle3") -> list[str]:
    return [
        *("--model-path", models["target"], "--device", "cpu", "--disable-cuda-graph"),
        *("--max-running-requests", "8", "--mem-fraction-static", "0.05"),
        *("--speculative-draft-model-path", models[draft]),
        *("--speculative-algorithm", "ADAPTIVE_EAGLE", *more),
    ]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["check", "--json", "--", *arguments]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_an_adaptive_launch_names_its_tiers_by_batch_and_its_memory(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = told(capsys, launch(models))
    assert (data["mode"], data["base"], data["policy"]) == ("adaptive", "EAGLE3", "goodput")
    assert data["tiers"]["1"] == ["0", "1", "2", "3", "5", "7", "10"]
    assert (data["memory_budget_gb"], data["max_running_requests"]) == (4.0, 8)
    assert main(["check", "--", *launch(models)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("would serve adaptive EAGLE3, config preset goodput, policy goodput")
    assert "  from batch 1 on: 0, 1, 2, 3, 5, 7, 10 steps" in text
    assert "at most 4 GB a GPU" in text


def test_a_static_launch_says_what_rules_switching_out(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = launch(models, "--disaggregation-mode", "prefill")
    data = told(capsys, arguments)
    assert data["mode"] == "static"
    assert main(["check", "--", *arguments]) == 0
    assert data["reason"] in capsys.readouterr().out


def test_a_launch_of_another_algorithm_says_so(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*launch(models), "--speculative-algorithm", "EAGLE3"]
    assert told(capsys, arguments)["mode"] == "without"
    assert main(["check", "--", *arguments]) == 0
    assert "--speculative-algorithm is EAGLE3, not ADAPTIVE_EAGLE" in capsys.readouterr().out


def test_a_launch_that_is_refused_is_refused_in_the_same_words(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "spec.json"
    config.write_text('{"1": {"candidate_stepz": [1]}}')
    arguments = launch(models, "--speculative-adaptive-config", str(config))
    assert main(["check", "--", *arguments]) == 1
    assert "candidate_stepz" in capsys.readouterr().err


def test_a_model_that_cannot_be_read_is_named(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*launch(models), "--speculative-draft-model-path=/nope/draft"]
    assert main(["check", "--", *arguments]) == 1
    said = capsys.readouterr().err
    assert "a model's config could not be read" in said
    assert f"--model-path {models['target']}" in said
    assert "--speculative-draft-model-path /nope/draft; allowed:" in said


def test_a_machine_without_an_accelerator_is_named(
    models: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang raises this there, at the first default that depends on the device."""
    found = "No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available."

    def refused(_arguments: list[str]) -> dict[str, Any]:
        raise RuntimeError(found)

    monkeypatch.setattr("sglang_adaptive_spec.host.launch.preview.preview", refused)
    assert main(["check", "--", *launch(models)]) == 1
    said = capsys.readouterr().err
    assert found in said
    assert "for a server on CPUs set SGLANG_USE_CPU_ENGINE=1" in said


def test_a_launch_that_sglang_refuses_when_it_starts_is_refused_in_its_words(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Static EAGLE under pipeline parallelism: the arguments resolve, and the engine refuses."""
    assert main(["check", "--", *launch(models, "--pp-size", "2")]) == 1
    assert "Pipeline parallelism" in capsys.readouterr().err


def test_pipeline_parallelism_on_a_prefill_node_is_served_static_with_an_eagle_draft_alone(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--pp-size", "2", "--disaggregation-mode", "prefill", "--disable-overlap-schedule")
    assert "decodes nothing" in told(capsys, launch(models, *more, draft="eagle"))["reason"]
    assert main(["check", "--", *launch(models, *more)]) == 1
    assert "only supports EAGLE" in capsys.readouterr().err


def test_a_launch_says_which_algorithm_its_draft_is_served_by(
    models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for draft, base in (("whole", "STANDALONE"), ("eagle", "EAGLE")):
        told_of = told(capsys, launch(models, draft=draft))
        assert (told_of["base"], told_of["mode"]) == (base, "adaptive")


@pytest.mark.full
def test_it_says_what_it_waits_for_and_loads_nothing_that_serves(models: dict[str, str]) -> None:
    """In a process of its own, as an operator runs it."""
    script = (
        "import sys; from sglang_adaptive_spec.cli import main\n"
        "status = main(['check', '--json', '--', *sys.argv[1:]])\n"
        "assert 'sglang.srt.managers.scheduler' not in sys.modules\n"
        "sys.exit(status)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *launch(models)], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout)["mode"] == "adaptive"
    assert "check: 1 of 2: compares SGLang's source" in ran.stderr
    assert "check: 2 of 2: imports SGLang" in ran.stderr


def test_a_tuned_file_is_taken_by_both_loaders(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    ranges = ((1, (0, 1, 3, 15)), (9, (0, 3)), (129, (0,)))
    tuned = answer(Candidate(ranges))
    config = tmp_path / "adaptive_spec.json"
    config.write_text(document(tuned, source_of(tmp_path)))
    data = told(capsys, launch(models, "--speculative-adaptive-config", str(config)))
    assert (data["mode"], data["policy"], data["startup_tier"]) == ("adaptive", "goodput", "15")
    assert data["tiers"] == {str(bound): list(map(str, steps)) for bound, steps in ranges}
    of_host = AdaptiveSpeculativeParams(3, str(config))
    assert of_host.candidate_steps == [0, 1, 3, 15]
    assert of_host.get_steps_for_batch(200) == 0
