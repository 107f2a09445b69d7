"""What does it take to know who is in a batch and how much context it has? On the CPU, per round.

The host's own request pool and KV records; no model runs. From the project's root, 20 s:

    python3 -m benchmarks.studies.rows run --out runs
    python3 -m benchmarks.studies.rows merge runs/rows-1.json \\
        --result benchmarks/results/current/rows-cpu.json
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.lab.run_files import (
    add_merge,
    add_run_flags,
    begin_run,
    merge_lists,
    run_command,
    write_run,
)
from benchmarks.lab.settings import numbers
from benchmarks.stats.differences import keys
from benchmarks.stats.tables import table
from sglang_adaptive_spec.host.batch import context_lengths, row_keys

NUM_CALLS = 1000  # of a window
NUM_WINDOWS = 20
LIMIT_US, LIMIT_REQUESTS = 10.0, 128  # of the context

Raw = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--sizes", type=numbers, default=(1, 16, 128, 2048), help="of batches")
    add_run_flags(run_)
    add_merge(commands)
    return top


def batch_of(size: int) -> Any:
    """Returns a decode batch as far as it is described, on the host's own objects."""
    import torch
    from sglang.srt.managers.schedule_batch import ReqKvInfo

    torch.set_num_threads(1)
    requests = [
        SimpleNamespace(kv=ReqKvInfo(req_pool_idx=row, kv_committed_len=1000 + row))
        for row in range(1, size + 1)
    ]
    generation = torch.randint(1, 1000, (2 * size + 1,))
    return SimpleNamespace(
        reqs=requests,
        req_pool_indices_cpu=torch.arange(1, size + 1),
        req_to_token_pool=SimpleNamespace(req_generation=generation),
    )


def call_us(describe: Callable[[Any], Any], batch: Any) -> list[float]:
    """Returns the mean time of a call, window by window."""
    windows = []
    for _ in range(NUM_WINDOWS):
        start_ns = time.perf_counter_ns()
        for _ in range(NUM_CALLS):
            describe(batch)
        windows.append((time.perf_counter_ns() - start_ns) / NUM_CALLS / 1e3)
    return [round(us, 3) for us in windows]


def run(args: argparse.Namespace) -> int:
    """Times both at every batch size."""
    record, path = begin_run(args, "rows")
    record["sizes"] = [
        {
            "batch_size": size,
            "context_us": call_us(context_lengths, batch_of(size)),
            "keys_us": call_us(row_keys, batch_of(size)),
        }
        for size in args.sizes
    ]
    write_run(record, path)
    print(size_table(build_result(record["provenance"], record["sizes"])))
    return 0


def build_result(origin: Raw, sizes: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file: medians of the windows beside them."""
    medians = {
        str(each["batch_size"]): {
            name: round(statistics.median(each[name]), 2) for name in ("context_us", "keys_us")
        }
        for each in sizes
    }
    return {"provenance": dict(origin), "us_per_round": medians, "raw": list(sizes)}


def check_rows(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of a result."""
    problems = keys("file", result, {"provenance", "us_per_round", "raw"})
    if not problems and result != build_result(result["provenance"], result["raw"]):
        problems.append("us_per_round is not what raw gives")
    return problems


def size_table(result: Raw) -> str:
    """Returns a row per batch size, and the verdict."""
    rows = [
        (size, f"{us['context_us']:.2f}", f"{us['keys_us']:.2f}")
        for size, us in result["us_per_round"].items()
    ]
    met = result["us_per_round"].get(str(LIMIT_REQUESTS), {}).get("context_us", LIMIT_US + 1)
    verdict = "met" if met <= LIMIT_US else "MISSED"
    limit = f"context at {LIMIT_REQUESTS} requests, at most {LIMIT_US} us: {verdict}"
    return f"{table(('requests', 'context us', 'keys us'), rows)}\n{limit}"


def merge(args: argparse.Namespace) -> int:
    """Writes the result file from run files."""
    return merge_lists(args, ["sizes"], build_result, size_table)


def main() -> int:
    """Runs one command."""
    return run_command(parser(), run, merge)


if __name__ == "__main__":
    sys.exit(main())
