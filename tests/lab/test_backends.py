"""Texts per attention backend: what counts as kept, what a result must hold, and a run of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inject.delay_plugin import DELAY_ENV
from benchmarks.inject.plant_plugin import FAULT_ENV
from benchmarks.lab.load import Round
from benchmarks.lab.settings import fleet_plan
from benchmarks.stats.differences import Gap
from benchmarks.studies import backends
from benchmarks.studies.backends import (
    CASES,
    FEW_GRAPHS,
    GPU_CASES,
    NUM_PROMPTS,
    TABLE_ARM,
    TABLE_CONFIG,
    agreed_texts,
    build_result,
    check_backends,
    figure_table,
    figures,
    made_pair,
    mean_correct_drafts,
    parser,
    plan_of,
    prefill_arms,
)
from tests.lab.dry_run import dry_run

ALGORITHM = "--speculative-algorithm"
PROVENANCE = {"git_sha": "0", "date": "2027-01-01"}
REFERENCE = [[[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]]  # by concurrency, then request
OTHER = [[[1, 2, 3], [4, 5, 7]], [[1, 2, 3], [4, 5, 7]]]
WIDTHS = {"none": {"None": 9}, "static-3": {"4": 9}, "ours": {"1": 2, "2": 2, "4": 2, "6": 2}}


def case_of(ours: Any, static: Any, **changes: Any) -> dict[str, Any]:
    texts = {"none": REFERENCE, "static-3": static, "ours": ours}
    return {
        "name": "triton",
        "texts": agreed_texts({arm: {"texts": each} for arm, each in texts.items()}),
        "widths": WIDTHS,
        "servers": [{"arm": arm, "captures": {"after_ready": 0}} for arm in texts],
        **changes,
    }


def result_of(*cases: dict[str, Any]) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(json.dumps(build_result(PROVENANCE, cases)))
    return built


def test_texts_as_often_those_of_none_as_static_eagles_are_kept() -> None:
    result = result_of(case_of(OTHER, OTHER))
    assert result["identical"] == {"triton": {"static-3": 0.5, "ours": 0.5}}
    assert [each.verdict for each in figures(result)] == ["met"]
    assert check_backends(result) == []
    better = result_of(case_of(REFERENCE, OTHER))  # of four requests: nothing is known
    assert better["identical"] == {"triton": {"static-3": 0.5, "ours": 1.0}}
    assert check_backends(better) == []
    assert [each.verdict for each in figures(better)] == ["not known"]
    assert "MISSED" not in figure_table(better)


def test_a_table_is_held_to_the_host_s_own() -> None:
    texts = {"none": REFERENCE, TABLE_ARM: OTHER, "ours": OTHER}
    agreed = agreed_texts({arm: {"texts": each} for arm, each in texts.items()})
    result = result_of(case_of(OTHER, OTHER, texts=agreed))
    (found,) = figures(result)
    assert f"over {TABLE_ARM}" in found.claim
    assert found.is_met
    assert f"{TABLE_ARM} as none" in figure_table(result)


def test_trees_are_held_to_a_static_tree_where_one_was_served() -> None:
    texts = {"none": REFERENCE, "static-3": REFERENCE, "static-3-4-8": OTHER, "ours": OTHER}
    agreed = agreed_texts({arm: {"texts": each} for arm, each in texts.items()})
    (found,) = figures(result_of(case_of(REFERENCE, OTHER, texts=agreed)))
    assert "over static-3-4-8" in found.claim
    assert found.is_met


def test_texts_that_only_static_eagle_keeps_are_a_miss() -> None:
    wrong = [[[9, 9, 9]] * 40] * 2
    right = [[[1, 2, 3]] * 40] * 2
    reference = {"none": {"texts": right}, "static-3": {"texts": right}, "ours": {"texts": wrong}}
    result = result_of(case_of(REFERENCE, REFERENCE, texts=agreed_texts(reference)))
    assert [each.is_met for each in figures(result)] == [False]


HARMED = [[[9, 9, 9]] * 2] * 2


@pytest.mark.parametrize(
    ("setting", "ours", "verdict"),
    [
        ("planted-fault", HARMED, "met"),
        ("planted-fault", OTHER, "not known"),  # two of four
        ("planted-fault", REFERENCE, "MISSED"),
        ("plan-stream", HARMED, "MISSED"),
        ("plan-stream", REFERENCE, "met"),
    ],
)
def test_a_planted_fault_must_harm_texts_and_any_other_setting_must_not(
    setting: str, ours: Any, verdict: str
) -> None:
    name = f"default-llama-{setting}"
    (found,) = figures(result_of(case_of(ours, REFERENCE, name=name)))
    assert found.verdict == verdict
    environments = [arm.environment or {} for arm in CASES[name].arms()]
    assert [FAULT_ENV in each for each in environments] == [setting == "planted-fault"] * 3


def test_the_gpu_is_slow_for_every_arm() -> None:
    arms = CASES["flashinfer-llama-slow-gpu"].arms()
    assert all(float((arm.environment or {})[DELAY_ENV]) > 0 for arm in arms)
    assert all("flashinfer" in arm.extra for arm in arms)


def test_two_ranks_are_asked_of_every_arm() -> None:
    one, two = CASES["triton-mla"], CASES["triton-mla-tp2"]
    assert all("--tp-size" not in arm.extra for arm in one.arms())
    for arm in two.arms():
        assert arm.extra[arm.extra.index("--tp-size") + 1] == "2"


def test_a_case_that_was_not_served_is_a_miss_and_no_silence() -> None:
    result = result_of(case_of(REFERENCE, OTHER, texts={}))
    assert [each.is_met for each in figures(result)] == [False]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"widths": {**WIDTHS, "ours": {"4": 9}}}, "ran {'4': 9} only"),
        (
            {"servers": [{"arm": "ours", "captures": {"after_ready": 2}}]},
            "ours captured while serving",
        ),
    ],
)
def test_a_run_that_shows_nothing_is_refused(changes: dict[str, Any], problem: str) -> None:
    (found,) = check_backends(result_of(case_of(REFERENCE, OTHER, **changes)))
    assert problem in found


def test_a_spoilt_share_is_found() -> None:
    result = result_of(case_of(REFERENCE, OTHER))
    result["identical"]["triton"]["ours"] = 0.9
    assert check_backends(result) == ["identical is not what raw gives"]


def test_latent_attention_has_trees_where_the_backend_drafts_them() -> None:
    assert {name: CASES[name].has_trees for name in GPU_CASES if "mla" in name} == {
        "flashinfer-mla": False,
        "triton-mla": True,
    }
    arms = {arm.name for name in GPU_CASES for arm in CASES[name].arms()}
    assert arms == {*WIDTHS, "static-3-4-8"}


def test_an_architecture_is_served_with_its_draft_and_its_backend() -> None:
    moe, own = CASES["fa3-qwen3-moe"], CASES["default-glm4-moe"]
    assert all(arm.extra == ("--attention-backend", "fa3", *FEW_GRAPHS) for arm in moe.arms())
    assert all(arm.extra == FEW_GRAPHS for arm in own.arms())
    bases = [case.arms()[1].speculative[1] for case in (moe, own)]
    assert bases == ["EAGLE3", "EAGLE"]


def test_a_setting_is_asked_of_every_arm_or_of_those_that_speculate() -> None:
    for arm in CASES["default-llama-fp8"].arms():
        assert "--quantization" in arm.extra
    none, *speculative = CASES["default-llama-rejection-sampling"].arms()
    assert "--speculative-use-rejection-sampling" not in none.extra
    assert all("--speculative-use-rejection-sampling" in arm.extra for arm in speculative)
    assert all("EAGLE3" not in arm.speculative for arm in speculative)


def test_a_table_is_served_without_a_draft_and_beside_the_host_s_own(tmp_path: Path) -> None:
    for backend in ("default", "flashinfer"):
        case = CASES[f"{backend}-llama-ngram"]
        pair = made_pair(case, tmp_path, is_cpu=True)
        assert pair is not None
        none, static, ours = case.arms()
        assert (none.speculative, static.speculative[:2]) == ((), (ALGORITHM, "NGRAM"))
        assert (ours.policy, ours.config) == ("alternate", TABLE_CONFIG)
        assert 0 in TABLE_CONFIG["1"]["candidate_steps"]
        for arm in (none, static, ours):
            arguments = arm.arguments(pair, tmp_path)
            assert "--speculative-draft-model-path" not in arguments
            assert ("--attention-backend" in arguments) == (backend == "flashinfer")


def test_a_whole_model_is_the_draft_of_every_arm_that_speculates(tmp_path: Path) -> None:
    case = CASES["default-llama-standalone"]
    pair = made_pair(case, tmp_path, is_cpu=True)
    assert pair is not None
    _, static, ours = case.arms()
    assert static.speculative[:2] == (ALGORITHM, "STANDALONE")
    for arm in (static, ours):
        assert str(tmp_path / "standalone") in arm.arguments(pair, tmp_path)


def test_both_nodes_of_a_pair_speculate_alike_and_one_server_is_no_pair() -> None:
    case = CASES["default-llama-pair"]
    none, *decoding = arms = case.arms()
    readers, nodes = prefill_arms(case, arms, first_port=20000)
    assert "--disaggregation-mode" not in none.extra
    for arm, reader in zip(decoding, readers, strict=True):
        assert (reader.speculative, reader.config) == (arm.speculative, arm.config)
        modes = [at(each, "--disaggregation-mode") for each in (reader, arm)]
        assert modes == ["prefill", "decode"]
        assert "--base-gpu-id" in arm.extra
        assert "--base-gpu-id" not in reader.extra
        port = at(reader, "--disaggregation-bootstrap-port")
        assert port == str(nodes[arm.name].bootstrap_port)
    assert len(set(nodes.values())) == len(decoding)
    assert prefill_arms(CASES["default-llama"], arms, first_port=20000) == ([], {})


def at(arm: Any, flag: str) -> str:
    found: str = arm.extra[arm.extra.index(flag) + 1]
    return found


def test_a_cache_on_the_host_is_not_served_without_prefixes(tmp_path: Path) -> None:
    args = parser().parse_args(["run", "--out", str(tmp_path)])
    shared = fleet_plan(args, tmp_path)
    plan = plan_of(CASES["default-llama-hicache"], shared, is_cpu=True)
    assert set(shared.common) - set(plan.common) >= {"--disable-radix-cache"}
    assert "--attention-backend" not in plan.common


def test_drafts_accepted_are_counted_where_there_were_drafts() -> None:
    plain = Round(0, 4, 4, 1, has_finished=False, replayed_graph=True)
    drafting = Round(0, 4, 9, 4, has_finished=False, replayed_graph=True)
    assert mean_correct_drafts([plain]) is None
    assert mean_correct_drafts([plain, drafting, drafting]) == 1.25


@pytest.mark.parametrize(
    ("correct", "sampled", "found"),
    [(0.3, NUM_PROMPTS, []), (0.1, NUM_PROMPTS, ["accepted 0.1"]), (0.3, 5, ["answered 5 of"])],
)
def test_a_case_that_accepts_or_answers_too_little_is_a_problem(
    correct: float, sampled: int, found: list[str]
) -> None:
    told = {"correct_drafts": {"none": None, "ours": correct}, "num_sampled": {"ours": sampled}}
    problems = check_backends(result_of(case_of(REFERENCE, OTHER, **told)))
    assert len(problems) == len(found)
    assert [isinstance(each, Gap) for each in problems] == ["accepted" in each for each in found]
    assert all(part in problem for part, problem in zip(found, problems, strict=True))


def test_a_server_that_ends_costs_no_other_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(case: Any, *_: Any) -> dict[str, Any]:
        if case.is_mla:
            return {**case_of(REFERENCE, OTHER), "name": case.name}
        raise RuntimeError("it ended at its start")

    monkeypatch.setattr(backends, "compare", compare)
    given = ["run", "--dry-cpu", "--cases", "triton,triton-mla", "--out", str(tmp_path)]
    assert backends.run(backends.parser().parse_args(given)) == 1
    assert "triton: it ended at its start" in capsys.readouterr().out
    record = json.loads((tmp_path / "backends-1.json").read_text())
    assert [bool(case["texts"]) for case in record["cases"]] == [False, True]


def test_every_architecture_and_its_draft_are_made(tmp_path: Path) -> None:
    assert backends.made_pair(CASES["default-qwen3"], tmp_path, is_cpu=True) is not None
    missing = [
        draft
        for family, draft in backends.FAMILY_DRAFTS.items()
        if not (tmp_path / (draft or family) / "config.json").is_file()
    ]
    assert missing == []


@pytest.mark.e2e
def test_on_the_cpu_host_every_text_is_that_of_none(tmp_path: Path) -> None:
    case = "intel_amx-llama-ngram"
    small = ("--max-total-tokens", "8192", "--new-tokens", "32", "--prompt-tokens", "16")
    given = ("--cases", case, "--deadline", "800")
    record = dry_run(tmp_path, "backends", "run", *small, *given)
    result = build_result(record["provenance"], record["cases"])
    assert check_backends(result) == []
    assert result["identical"] == {case: dict.fromkeys((TABLE_ARM, "ours"), 1.0)}
