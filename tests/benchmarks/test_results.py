"""The committed results: every figure follows from its raw repeats, and the targets are shown.

Whether the measured code is still the code of the checkout is `make verify-results`.
"""

import json
from pathlib import Path

from benchmarks.verify_results import RESULTS, check_slice


def test_every_figure_of_the_slice_follows_from_its_raw_repeats() -> None:
    result = json.loads(Path(RESULTS / "slice-h200.json").read_text())
    assert check_slice(result) == []


def test_a_figure_changed_by_hand_is_noticed() -> None:
    result = json.loads(Path(RESULTS / "slice-h200.json").read_text())
    result["arms"]["ema"]["tiers_gb"] *= 0.9
    assert check_slice(result) != []
