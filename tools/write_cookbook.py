"""Writes the table of docs/compatibility.md that says what the cookbook's launch lines would serve.

Every tested release resolves every line (tools/cookbook/). Run as `python -m tools.write_cookbook`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from sglang_adaptive_spec.contract.versions import TESTED
from tests.hosts import REPO, host_source
from tools.cookbook.launches import LAUNCHES

PAGE = REPO / "docs" / "compatibility.md"
TABLE = re.compile(r"(?<=^<!-- cookbook rows -->\n)((?:\|.*\n){2})((?:\|.*\n)*)", re.MULTILINE)
TIMEOUT_S = 300.0
Answer = Mapping[str, Any]


def answers(release: str) -> dict[str, Answer]:
    """Returns what `check` answers to each launch under a release, by name."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(host_source(release)), str(REPO))),
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    ask = [sys.executable, "-m", "tools.cookbook.answers"]
    run = subprocess.run(
        ask, env=environment, cwd=REPO, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if run.returncode:
        raise SystemExit(f"sglang {release} did not answer:\n{run.stderr[-4000:]}")
    found: dict[str, Answer] = json.loads(run.stdout)
    return found


def rows(by_release: Mapping[str, Mapping[str, Answer]]) -> str:
    """Returns a row for each launch, and where releases differ one for each answer."""
    lines = []
    for launch in LAUNCHES:
        releases: dict[tuple[str, str, str], list[str]] = {}
        for release, found in by_release.items():
            if launch.name in found:
                releases.setdefault(cells(found[launch.name]), []).append(release)
        for (served, tiers, cap), those in releases.items():
            name = launch.name
            if len(those) < len(by_release):
                name += f" ({', '.join(those)})"
            steps = "none" if launch.num_steps is None else launch.num_steps
            flags = f"`{launch.arguments}`"
            lines.append(f"| {name} | {flags} | {steps} | {served} | {tiers} | {cap} |\n")
    return "".join(lines)


def cells(answer: Answer) -> tuple[str, str, str]:
    """Returns what would be served, how deep by batch, and how many requests would run."""
    if answer["mode"] != "adaptive":
        return f"{answer['mode']}: {answer['reason']}", "", ""
    deepest = [(int(bound), tiers[-1]) for bound, tiers in answer["tiers"].items()]
    by_batch = [f"{tier} from {bound} on" for bound, tier in deepest[1:]]
    cap = answer["max_running_requests"]
    return (
        f"adaptive {answer['base']}, begins at {answer['initial_tier']}",
        ", ".join((deepest[0][1], *by_batch)),
        "as memory allows" if cap is None else str(cap),
    )


def page(text: str, new_rows: str) -> str:
    """Returns the page with ``new_rows`` in its table."""
    return TABLE.sub(lambda found: found.group(1) + new_rows, text)


def main() -> None:
    """Writes the page."""
    new_rows = rows({release: answers(release) for release in TESTED})
    PAGE.write_text(page(PAGE.read_text(), new_rows))


if __name__ == "__main__":
    main()
