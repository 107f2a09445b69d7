"""Sampling's arms and pieces: other seeds, the widened head, agreement, what a cell keeps."""

import json
from pathlib import Path

import pytest

from benchmarks.lab.settings import fleet_plan
from benchmarks.studies.sampling.__main__ import (
    DEFAULT_ARMS,
    SAMPLED_ARMS,
    depths_of,
    parser,
    seed_of,
    seeded_arms,
)
from benchmarks.studies.sampling.summary import ARMS, NONE, OURS, WRONG, agreement
from benchmarks.studies.sampling.wide_head import widen_head

RUN = ("run", "--prompts", "p.json", "--out", "out")


def test_the_arms_of_the_script_are_those_of_the_result() -> None:
    assert tuple(SAMPLED_ARMS) == ARMS
    assert all(arm.name == name for name, arm in SAMPLED_ARMS.items())


def test_no_two_arms_or_runs_share_a_seed() -> None:
    seeds = {seed_of(seed, arm) for seed in (1, 2, 3) for arm in SAMPLED_ARMS}
    assert len(seeds) == 3 * len(SAMPLED_ARMS)


def test_the_arms_own_arguments_come_last_and_so_win(tmp_path: Path) -> None:
    args = parser().parse_args([*RUN])
    plan = fleet_plan(args, tmp_path)
    arms = {arm.name: arm for arm in seeded_arms(args, plan, tmp_path)}
    assert tuple(arms) == DEFAULT_ARMS
    assert arms[NONE].arguments(plan.pair, tmp_path) == ["--random-seed", "1000"]
    assert arms[WRONG].arguments(plan.pair, tmp_path)[-4:] == [
        *("--speculative-accept-threshold-single", "0.2"),
        *("--random-seed", "1004"),
    ]
    ours = arms[OURS]
    assert ours.policy == arms[WRONG].policy == "alternate"
    config = json.loads((tmp_path / "wrong.json").read_text())
    assert config == {"policy": "ema", "1": {"candidate_steps": [0, 1, 3, 5, 7]}}


def test_rejection_sampling_gets_the_wide_head(tmp_path: Path) -> None:
    target, draft = heads(tmp_path)
    args = parser().parse_args(
        [*RUN, "--arms", "none,alternate-rejection", "--target", str(target), "--draft", str(draft)]
    )
    plan = fleet_plan(args, tmp_path)
    none, ours = seeded_arms(args, plan, tmp_path)
    arguments = ours.arguments(plan.pair, tmp_path)
    assert "--speculative-use-rejection-sampling" in arguments
    assert arguments[-1] == str(tmp_path / "wide-head")
    assert "--speculative-draft-model-path" not in none.arguments(plan.pair, tmp_path)


def heads(folder: Path) -> tuple[Path, Path]:
    """A target of six tokens and a head that proposes the second and the fifth."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    target, draft = folder / "target", folder / "draft"
    for path in (target, draft):
        path.mkdir()
    embeddings = torch.arange(12.0).reshape(6, 2).bfloat16()
    save_file({"model.embed_tokens.weight": embeddings}, target / "model.safetensors")
    save_file(
        {
            "lm_head.weight": torch.full((2, 2), -1.0).bfloat16(),
            "d2t": torch.tensor([1, 3]),
            "t2d": torch.tensor([False, True, False, False, True, False]),
            "norm.weight": torch.ones(2),
        },
        draft / "model.safetensors",
    )
    (draft / "config.json").write_text(json.dumps({"vocab_size": 6, "draft_vocab_size": 2}))
    return target, draft


def test_a_wide_head_keeps_its_own_rows_and_takes_the_others_from_the_target(
    tmp_path: Path,
) -> None:
    target, draft = heads(tmp_path)
    from safetensors.torch import load_file

    wide = widen_head(draft, target, tmp_path / "wide")
    weights = load_file(wide / "model.safetensors")
    assert set(weights) == {"lm_head.weight", "norm.weight"}
    assert weights["lm_head.weight"].tolist() == [[0, 1], [-1, -1], [4, 5], [6, 7], [-1, -1],
                                                  [10, 11]]  # fmt: skip
    assert json.loads((wide / "config.json").read_text())["draft_vocab_size"] == 6
    assert widen_head(wide, target, tmp_path / "again") == wide


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [3, 3, 3]),
        ([1, 9, 3], [1, 2, 3], [1, 3, 3]),
        ([1, 2], [1, 2, 3], [2, 2, 3]),
        ([], [1], [0, 0, 1]),
    ],
)
def test_texts_agree_up_to_the_first_other_token(
    text: list[int], reference: list[int], expected: list[int]
) -> None:
    assert agreement(text, reference) == expected


def test_depths_are_those_of_decode_rounds() -> None:
    rounds = [(1, 4, 4, 1, False, True), (2, 0, 0, None, False, False), (3, 4, 9, 8, False, True)]
    assert list(depths_of(rounds)) == ["0", "7"]
    assert list(depths_of([(1, 4, 4, None, False, True)])) == ["none"]
