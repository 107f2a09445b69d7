"""What CONTRIBUTING.md tells a newcomer to type is what there is, and its policy runs."""

import re
from typing import Any

from tests.docs.pages import code_blocks, code_spans
from tests.hosts import REPO

TEXT = (REPO / "CONTRIBUTING.md").read_text()
LEAST = 0.9  # of the oracle, as the text says
MAX_POLICY_LINES = 30


def test_the_policy_is_short_and_serves_what_the_text_says() -> None:
    policy, replay = code_blocks(TEXT, "python")
    assert len([line for line in policy.splitlines() if line]) <= MAX_POLICY_LINES
    found: dict[str, Any] = {}
    exec(policy + replay, found)
    assert LEAST < found["share_of_oracle"] < 1.0
    assert found["served"].rounds_by_steps.keys() == {0, 3}
    assert f"more than {LEAST} of the oracle" in TEXT


def test_every_command_and_path_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    spans = code_spans(TEXT)
    makes = {span.removeprefix("make ") for span in spans if span.startswith("make ")}
    assert makes >= {"check", "test", "test-full"}
    assert makes <= targets
    paths = [span for span in spans if re.fullmatch(r"[\w./-]+/[\w./-]+|\.[\w.-]+\.yaml", span)]
    package = REPO / "sglang_adaptive_spec"
    missing = [
        path for path in paths if not any((root / path).exists() for root in (REPO, package))
    ]
    assert [path for path in missing if not path.startswith(".cache/")] == []


def test_the_hook_calls_what_the_text_says() -> None:
    hooks = (REPO / ".pre-commit-config.yaml").read_text()
    assert "entry: make check" in hooks
