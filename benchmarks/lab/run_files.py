"""What every benchmark does alike: a command's record, its file, and one result file of many."""

import argparse
import json
import pkgutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.server import end_servers
from benchmarks.stats.provenance import check_same_code, provenance
from benchmarks.stats.result_file import write_result

Command = Callable[[argparse.Namespace], int]


def add_merge(commands: Any, has_plot: bool = False, has_incomplete: bool = False) -> None:
    """Adds the subcommand ``merge``: run files in, a result file and perhaps a plot out."""
    merge = commands.add_parser("merge")
    merge.add_argument("files", type=Path, nargs="+")
    merge.add_argument("--result", type=Path, required=True)
    if has_plot:
        merge.add_argument("--plot", type=Path)
    if has_incomplete:
        merge.add_argument("--incomplete", action="store_true", help="keep cells that lack an arm")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `begin_run` reads: where the record goes, its name, and the code that runs."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tag", default="1", help="names the file; one per command [1]")
    parser.add_argument("--git-sha", help="where the repository itself is absent")


def begin_run(args: argparse.Namespace, purpose: str) -> tuple[dict[str, Any], Path]:
    """Returns a command's record, so far its provenance, and its file in ``--out``."""
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"purpose": purpose, "provenance": provenance(args.git_sha)}
    return record, args.out / f"{purpose}-{args.tag}.json"


def write_run(record: dict[str, Any], path: Path) -> None:
    """Writes a command's record so far."""
    path.write_text(json.dumps(record) + "\n")


def read_runs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns the records of several commands."""
    return [json.loads(path.read_text()) for path in paths]


def publish(
    args: argparse.Namespace, result: Any, *shows: Callable[[Any], str], plot: str = ""
) -> int:
    """Writes a result file and prints what is shown of it; returns the exit code.

    ``plot`` names who draws it, where the command asks for a picture: resolved only then, because a
    machine that measures need not have a library that draws.
    """
    args.result.parent.mkdir(parents=True, exist_ok=True)
    write_result(args.result, result)
    for show in shows:
        print(show(result))
    if plot and args.plot is not None:
        pkgutil.resolve_name(plot)(result, args.plot)
    return 0


def merge_lists(
    args: argparse.Namespace,
    names: Sequence[str],
    build: Callable[..., dict[str, Any]],
    show: Callable[[Any], str],
) -> int:
    """Writes and shows what ``build`` makes of the provenance and the lists of all run files."""
    records = read_runs(args.files)
    lists = ([each for record in records for each in record[name]] for name in names)
    return publish(args, build(check_same_code(records), *lists), show)


def merge_command(
    doc: str | None,
    build: Callable[[Sequence[Any]], dict[str, Any]],
    show: Callable[[Any], str],
) -> int:
    """Writes and shows what ``build`` makes of the runs of another module, as users name them.

    Args:
        doc: the module's docstring.
        build: takes the records of all run files.
        show: of the result.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    return publish(args, build(read_runs(args.files)), show)


def run_command(parser: argparse.ArgumentParser, run: Command, merge: Command) -> int:
    """Runs the command that was asked for."""
    args = parser.parse_args()
    signal.signal(signal.SIGINT, end_servers)
    return merge(args) if args.command == "merge" else run(args)
