"""`tune`: which tiers pay for this traffic, and the adaptive_spec.json that says so."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.cli.parsing import (
    add_json,
    add_keys,
    add_replica,
    add_verb,
    positive,
    print_json,
    write,
)
from sglang_adaptive_spec.operate.tune.blocks import Traffic
from sglang_adaptive_spec.operate.tune.changes import DEEPEST
from sglang_adaptive_spec.operate.tune.minutes import MOST_ROUNDS
from sglang_adaptive_spec.operate.tune.search import tune
from sglang_adaptive_spec.operate.tune.source import Source, of_files, of_server
from sglang_adaptive_spec.operate.tune.text import as_data, document, render
from sglang_adaptive_spec.simulate.true_costs import EXAMPLES


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "tune",
        "Which tiers pay for my traffic? Writes adaptive_spec.json.",
        "sglang-adaptive-spec tune http://127.0.0.1:30000 --out adaptive_spec.json",
        run,
    )
    verb.add_argument(
        "server", nargs="?", metavar="URL", help="its round times, and its minutes of a day"
    )
    verb.add_argument("--trace", type=Path, metavar="FILE", help="a recorded trace, not minutes")
    verb.add_argument(
        "--costs",
        metavar="FILE",
        help=f"without URL: a cost cache, or an H200's: {', '.join(EXAMPLES)}",
    )
    verb.add_argument("--out", type=Path, metavar="FILE", help="the file, if there is a gain")
    verb.add_argument("--dry-run", action="store_true", help="print the difference, write nothing")
    verb.add_argument(
        "--lean",
        action="store_true",
        help="leave out tiers that hardly ran, for their memory and start-up time; then there is a "
        "file without a gain, too",
    )
    verb.add_argument(
        "--rounds",
        type=positive,
        metavar="NUMBER",
        help=f"the newest that are replayed [{MOST_ROUNDS}]",
    )
    add_replica(verb)
    add_keys(verb)
    add_json(verb)


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found, and writes the file that is asked for."""
    source = _source(arguments)
    traffic = Traffic(source.trace, source.costs, DEEPEST)
    tuned = tune(traffic, source.start, is_lean=arguments.lean, say=_say)
    if arguments.json:
        print_json(as_data(tuned, source))
    else:
        print(render(tuned, source))
    is_wanted = tuned.is_better or (arguments.lean and tuned.best != tuned.default)
    if is_wanted and arguments.out is not None and not arguments.dry_run:
        write(arguments.out, document(tuned, source))
        _say(f"wrote {arguments.out}")
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    """Returns what is tuned.

    Raises:
        ValueError: Nothing is named, or cannot be read.
    """
    if arguments.server is None:
        if arguments.trace is None:
            raise ValueError(
                "tune got neither a server nor a trace; allowed: URL, --trace FILE, or both; fix: "
                "name one."
            )
        return of_files(arguments.trace, arguments.costs, arguments.rounds)
    if arguments.costs is not None:
        raise ValueError(
            "--costs goes without URL; a server measures its own; fix: leave out one of the two."
        )
    keys = (arguments.api_key, arguments.admin_api_key)
    return of_server(arguments.server, arguments.trace, keys, arguments.replica, arguments.rounds)


def _say(what: str) -> None:
    """Says what takes a while, beside the answer."""
    print(f"tune: {what}", file=sys.stderr, flush=True)
