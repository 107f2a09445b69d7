"""Arms: an earlier commit's is ours, but for its name and where its code lies."""

from pathlib import Path

import pytest

from benchmarks.lab.arms import ARMS, earlier, is_earlier
from tests.hosts import REPO


def test_an_earlier_commit_serves_ours_from_its_own_folder() -> None:
    ours = ARMS["goodput"]
    (arm,) = earlier(ours, f"15bedd4={REPO}")
    assert arm.speculative == ours.speculative
    assert arm.environment == {"PYTHONPATH": str(REPO), "PYTHONSAFEPATH": "1"}
    assert is_earlier(arm.name)
    assert not is_earlier(ours.name)
    assert earlier(ours, None) == []


@pytest.mark.parametrize("named", ["", "15bedd4", "={folder}", "15bedd4={folder}/absent"])
def test_a_folder_without_the_code_is_refused(named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed: COMMIT=FOLDER"):
        earlier(ARMS["goodput"], named.format(folder=tmp_path))
