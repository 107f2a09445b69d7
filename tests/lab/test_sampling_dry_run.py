"""Sampling end to end on the CPU host: two servers alive, both sampled, texts compared.

Speculation on a CPU is greedy whatever the temperature, so no figure says anything here.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.sampling.summary import merged
from benchmarks.studies.sampling.tables import figure_table
from tests.lab.dry_run import dry_run, write_prompts

pytestmark = pytest.mark.e2e

SMALL = ("--max-total-tokens", "8192", "--samples", "96", "--batch", "8", "--in-flight", "1",
         "--greedy-tokens", "24", "--concurrency", "4", "--deadline", "800")  # fmt: skip
PHASES = ("prose", "code", "json", "low")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two arms and two cells."""
    folder = tmp_path_factory.mktemp("sampling-dry-run")
    given = (*write_prompts(folder, PHASES), "--arms", "none,ema-alternate")
    dry_run(folder / "out", "sampling", "run", *SMALL, *given, "--cells", "greedy,t0.8,top_p")
    return folder / "out"


@pytest.fixture(scope="module")
def result(out: Path) -> dict[str, Any]:
    """The merged result."""
    return merged([json.loads((out / "sampling-1.json").read_text())])


def test_every_position_of_every_prompt_has_its_samples(result: dict[str, Any]) -> None:
    assert [cell["name"] for cell in result["cells"]] == ["t0.8", "top_p"]
    for cell in result["cells"]:
        assert cell["num_samples"] == {"none": 96, "ema-alternate": 96}
        for counts in cell["counts"].values():
            sizes = Counter(sum(one.values()) for positions in counts for one in positions)
            assert sizes == {24: 4 * 8}
    assert "distance found" in figure_table(result)


def test_the_tier_changes_every_round_and_none_has_no_depth(result: dict[str, Any]) -> None:
    for cell in result["cells"]:
        assert set(cell["rounds"]["ema-alternate"]) == {"0", "1", "3", "5", "7"}
        rounds = sum(cell["rounds"]["ema-alternate"].values())
        assert cell["num_switches"]["ema-alternate"] >= 0.8 * (rounds - 1)
        assert set(cell["rounds"]["none"]) == {"none"}


def test_greedy_text_is_that_of_no_speculation(result: dict[str, Any]) -> None:
    (compared,) = result["greedy"]["raw"]["ema-alternate"]
    assert len(compared["agreed"]) == 8
    assert result["greedy"]["identical"] == {"ema-alternate": 1.0}


def test_a_run_leaves_two_files(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["sampling-1.json", "sampling-1.log"]
