"""A drafter that is no EAGLE serves through the same worker, rounds and controller."""

from dataclasses import replace

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.launches import forced
from tests.e2e.server import Launch
from tests.e2e.traffic import check_served_whole

CASES = [
    replace(forced("eagle", "table", host="0.5.21", overlap=overlap), strict=True)  # no mutant
    for overlap in (True, False)
]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("launch", CASES, ids=str, scope="module"),
]


def test_drafts_from_a_table_change_speed_and_never_text(fleet: Fleet, launch: Launch) -> None:
    spec = check_served_whole(fleet, launch)
    assert min(spec["rounds"].values()) >= 20, spec["rounds"]
    assert sum(spec["num_correct_drafts"].values()) > 0  # some of the table's drafts hold
