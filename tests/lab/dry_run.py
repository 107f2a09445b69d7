"""Runs a benchmark on the CPU host: real servers, tiny models, the arguments of its users.

Servers fork their processes from the first one (e2e_plugins/forked.py), so that they import nothing
anew: most of a dry run would be that.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.lab.fleet import PORT_STEP
from benchmarks.lab.server import announce
from tests.e2e.launches import MODELS, ensure_tiny_models
from tests.e2e.server import is_free
from tests.hosts import REPO

TIMEOUT_S = 900
FORKED = "tests.e2e.plugins.e2e_plugins.forked:register"
# Below the ports of the end-to-end servers, of which some may be up: a fleet's arms stand PORT_STEP
# apart.
FIRST_PORTS = range(27000, 31000, 200)
NONE: Mapping[str, str] = MappingProxyType({})


def dry_run(
    out: Path, script: str, *arguments: str, environment: Mapping[str, str] = NONE
) -> dict[str, Any]:
    """Runs a study with ``arguments`` to its end; returns the record it leaves."""
    ensure_tiny_models()
    command = [sys.executable, "-m", f"benchmarks.studies.{script}", *arguments, "--dry-cpu"]
    command += ["--target", str(MODELS / "target"), "--draft", str(MODELS / "eagle3")]
    command += ["--context-length", "1024", "--port", str(free_ports()), "--out", str(out)]
    with tempfile.TemporaryDirectory() as plugin:
        announce(Path(plugin), "forked", FORKED)
        paths = filter(None, [plugin, os.environ.get("PYTHONPATH")])
        given = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            command, cwd=REPO, env=given, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads((out / f"{script.replace('_', '-')}-1.json").read_text())
    return record


def free_ports() -> int:
    """Returns the first of the ports that a fleet's arms take; nothing listens on any of them."""
    for first in random.sample(FIRST_PORTS, len(FIRST_PORTS)):
        if all(map(is_free, range(first, first + FIRST_PORTS.step, PORT_STEP))):
            return first
    raise RuntimeError(f"no free ports in {FIRST_PORTS}")


def write_prompts(folder: Path, phases: Sequence[str]) -> tuple[str, str]:
    """Writes two random prompts a phase into ``folder``; returns the arguments that name them."""
    rng = random.Random(1)
    prompts = {phase: [rng.choices(range(5, 250), k=16) for _ in range(2)] for phase in phases}
    path = folder / "prompts.json"
    path.write_text(json.dumps(prompts))
    return "--prompts", str(path)
