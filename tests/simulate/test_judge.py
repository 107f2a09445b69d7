"""Every decision on the traces of judge.py is the one that was written down."""

import json

import pytest

from tests.simulate.driven import NUM_ROUNDS, on_ranks, with_faults
from tests.simulate.judge import ROUNDS, as_json, traces

TRACES = traces()


@pytest.mark.parametrize("name", TRACES)
def test_every_round_runs_as_it_was_written_down(name: str) -> None:
    assert as_json(TRACES[name]()) == (ROUNDS / f"{name}.json").read_text()


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in ROUNDS.glob("*.json")} == TRACES.keys()


@pytest.mark.parametrize("name", ["faults", "ranks", "trees"])
def test_a_driven_trace_has_probes_and_moves_in_every_batch_size(name: str) -> None:
    rows = json.loads((ROUNDS / f"{name}.json").read_text())
    assert sum(number for *_, number in rows) == NUM_ROUNDS
    sizes = {size for size, *_ in rows}
    assert all(len({tier for size, tier, *_ in rows if size == each}) > 1 for each in sizes)
    assert any(is_probe for *_, is_probe, _ in rows)


def test_ranks_run_alike() -> None:
    first, second = on_ranks()
    assert first == second


def test_trees_are_among_the_tiers_that_run() -> None:
    labels = {label for _, label, *_ in json.loads((ROUNDS / "trees.json").read_text())}
    assert len([label for label in labels if "-" in label]) > 1
    assert len([label for label in labels if "-" not in label]) > 1


def test_a_decision_that_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulate.driven.LOST_EVERY", 96)
    assert as_json(with_faults()) != (ROUNDS / "faults.json").read_text()
