"""The README is for people who skim: what a user types stands on its first screen."""

from tests.docs.pages import code_blocks
from tests.hosts import REPO

README = (REPO / "README.md").read_text()
SCREEN_LINES = 25


def test_the_first_screen_installs_launches_and_shows_what_one_sees() -> None:
    screen = "\n".join(README.splitlines()[:SCREEN_LINES])
    typed, seen = code_blocks(screen, "bash"), code_blocks(screen, "json")
    assert "pip install" in typed[0]
    assert "--speculative-algorithm ADAPTIVE_EAGLE" in typed[0]
    assert "/server_info" in typed[0]
    assert '"mode"' in seen[0]
