"""Prints what `check` answers to every launch of the cookbook, as JSON, under one SGLang.

Run as `python -m tools.cookbook.answers` with that SGLang first on PYTHONPATH.
"""

import contextlib
import importlib
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.versions import installed_host, is_supported
from tools.cookbook.gpu_machine import pretend
from tools.cookbook.launches import LAUNCHES, Config, Launch

ALGORITHM = ("--speculative-algorithm", "ADAPTIVE_EAGLE")


def answer(launch: Launch) -> dict[str, Any]:
    """Returns the answer to a launch, in a process that has resolved no other."""
    from sglang_adaptive_spec.host.launch.preview import preview

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        arguments = [*ALGORITHM, *launch.arguments.split(), *launch.others.split()]
        arguments += ["--model-path", write(Path(folder) / "target", launch.target)]
        if launch.num_steps is not None:
            arguments += ["--speculative-num-steps", str(launch.num_steps)]
            arguments += ["--speculative-num-draft-tokens", str(launch.num_steps + 1)]
            arguments += ["--speculative-eagle-topk", "1"]
        if launch.draft is not None:
            draft = write(Path(folder) / "draft", launch.draft)
            arguments += ["--speculative-draft-model-path", draft]
        try:
            return preview(arguments)
        except (ValueError, AssertionError) as error:
            return {"mode": "refused", "reason": str(error)}
        except Exception as error:  # noqa: BLE001 - some cannot be pickled: the pool would wait
            raise RuntimeError(f"{launch.name}: {error!r}") from None


def write(folder: Path, config: Config) -> str:
    """Writes a model of which there is a config alone; returns its path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def import_once() -> None:
    """Imports what resolution does, so that no process after this one has to."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    for name in ("arguments", "preview"):
        importlib.import_module(f"sglang_adaptive_spec.host.launch.{name}")


def main() -> None:
    """Prints the answers by launch."""
    pretend()
    host = installed_host()
    assert host is not None, "PYTHONPATH names none"
    readable = [each for each in LAUNCHES if is_supported(host.version, each.releases)]
    with contextlib.redirect_stdout(sys.stderr):
        import_once()
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = pool.map(answer, readable, chunksize=1)
    names = (launch.name for launch in readable)
    json.dump(dict(zip(names, answers, strict=True)), sys.stdout)


if __name__ == "__main__":
    main()
