"""Runs in a subprocess with one host first on PYTHONPATH: replays cases on the host's own class.

    python host_replay.py CASES.json RESULT.json

Per round it records the steps for the batch, what ``on_verify_complete`` answered, and the exact
average of the slot that took it.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang.srt.speculative import adaptive_spec_params as host


def replay(case: dict[str, Any], config_path: Path) -> list[list[Any]]:
    config_path.write_text(json.dumps(case["config"]))
    params = host.AdaptiveSpeculativeParams(case["initial_steps"], str(config_path))
    trace = []
    for batch_size, drafts in case["rounds"]:
        steps = params.get_steps_for_batch(batch_size)
        answer = params.on_verify_complete(drafts, batch_size)
        ema = params._route(batch_size).ema_accept_len
        trace.append([steps, answer, ema.hex()])
    return trace


def main(cases_path: str, result_path: str) -> None:
    cases = json.loads(Path(cases_path).read_text())
    with tempfile.TemporaryDirectory() as folder:
        traces = [replay(case, Path(folder) / "adaptive_spec.json") for case in cases]
    result = {"module": host.__file__, "traces": traces}
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
