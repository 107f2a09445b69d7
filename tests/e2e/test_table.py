"""A table of what was written, under goodput: as wide as what it has, and the same text."""

from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import CONFIGS, adaptive
from tests.e2e.server import Launch
from tests.e2e.traffic import check_served_whole


def by_what_is_found(host: str, overlap: bool) -> Launch:
    """ADAPTIVE_EAGLE with a table, by its own policy."""
    launch = adaptive("ngram", host=host, overlap=overlap)
    config = str(CONFIGS / "ngram_goodput.json")  # in place of the last argument
    return replace(launch, name="ngram-goodput", args=(*launch.args[:-1], config), strict=True)


CASES = [by_what_is_found("0.5.21", overlap=True), by_what_is_found("0.5.23", overlap=False)]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def test_rounds_follow_what_the_table_has_and_never_change_text(
    fleet: Fleet, launch: Launch
) -> None:
    spec = check_served_whole(fleet, launch)
    assert sum(spec["num_correct_drafts"].values()) > 0
    found = spec["acceptance"]["found"]
    assert 0 < found[-1] <= found[0] <= 1
    assert spec["rounds"]["0"] > 0, spec["rounds"]
    assert sum(spec["rounds"].values()) > spec["rounds"]["0"], spec["rounds"]
