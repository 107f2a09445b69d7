"""The command line of the matrix, which also reads the commands that a result file names."""

import argparse

from benchmarks.lab.arms import ARMS, add_before
from benchmarks.lab.run_files import add_merge
from benchmarks.lab.settings import add_fleet_flags, words
from benchmarks.lab.visits import MAX_TOTAL_TOKENS, add_visit_flags


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    top = argparse.ArgumentParser(description="Every arm in every cell.")
    commands = top.add_subparsers(dest="command", required=True)
    run_ = commands.add_parser("run")
    run_.add_argument("--arms", type=words, required=True, help=f"of {', '.join(ARMS)}")
    run_.add_argument("--record", action="store_true", help="keep the rounds of ours")
    add_visit_flags(run_)
    add_fleet_flags(run_, MAX_TOTAL_TOKENS)
    add_before(run_)
    add_merge(commands, has_plot=True, has_incomplete=True)
    return top
