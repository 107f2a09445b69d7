"""Is the simulator right, and how far is the policy from the oracle on every golden trace?

Anywhere, without a GPU (SHA: the commit, where the repository is absent; half a minute):

    python3 -m benchmarks.studies.simulator run \\
        --result benchmarks/results/current/simulator.json.xz
    python3 -m benchmarks.studies.simulator keep-costs runs/matrix-a1.json \\
        --result benchmarks/results/current/costs-h200-fa3.json.xz

Both halves replay against round times of one server (costs-h200-fa3.json.xz): measured at its
start, and corrected by what it learned while it served a visit of the matrix that is not in the
result.
Regret: golden traces, goodput over the oracle. Agreement: the cells of matrix-h200-fa3.json.xz,
visited in its order by one policy, windows and expected rates cut by the very functions of the
matrix, over the rate that other servers reached there. Replays are deterministic:
`check_simulator` does them again.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.lab.run_files import publish
from benchmarks.stats.provenance import RESULTS, provenance
from benchmarks.stats.result_file import read_result
from benchmarks.studies.simulator.server_costs import keep_costs
from benchmarks.studies.simulator.summary import MATRIX, build_result, figure_table, simulate


def main() -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--git-sha", help="where the repository itself is absent")
    run.add_argument("--result", type=Path, required=True)
    keep = commands.add_parser("keep-costs")
    keep.add_argument("run", type=Path, help="a run file of the matrix that has goodput")
    keep.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "keep-costs":
        keep_costs(args.run, args.result)
        return 0
    measured = read_result(RESULTS / MATRIX)
    raw, costs_from = simulate(measured)
    result = build_result(provenance(args.git_sha), raw, measured, costs_from)
    return publish(args, result, figure_table)


if __name__ == "__main__":
    sys.exit(main())
