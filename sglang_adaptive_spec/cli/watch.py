"""`watch`: what servers do, second by second."""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from sglang_adaptive_spec.cli.parsing import add_verb, positive, seconds
from sglang_adaptive_spec.operate.watch.screen import Watched, json_lines, lines, tables


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "watch",
        "What are the servers doing right now?",
        "sglang-adaptive-spec watch http://127.0.0.1:30000",
        run,
    )
    verb.add_argument("server", nargs="+", metavar="URL", help="servers of ADAPTIVE_EAGLE")
    verb.add_argument("--api-key", metavar="KEY", help="the servers'")
    verb.add_argument(
        "--interval", type=seconds, default=1.0, metavar="SECONDS", help="between looks [1]"
    )
    verb.add_argument(
        "--lines", type=positive, metavar="NUMBER", help="then end; where lines are printed"
    )
    verb.add_argument("--json", action="store_true", help="print a line of JSON a look and replica")


def run(arguments: argparse.Namespace) -> int:
    """Shows samples until it is interrupted, or for as many lines as asked for."""
    servers = [Watched(url, arguments.api_key) for url in arguments.server]
    is_drawn = sys.stdout.isatty() and not arguments.json
    try:
        if is_drawn and importlib.util.find_spec("rich") is not None:
            _draw(tables(servers, arguments.interval))
        else:
            shown = (json_lines if arguments.json else lines)(servers, arguments.interval)
            for line in itertools.islice(shown, arguments.lines):
                print(line, flush=True)
    except (KeyboardInterrupt, BrokenPipeError):  # how a watch ends
        pass
    return 0


def _draw(shown: Iterator[Any]) -> None:
    from rich.live import Live

    with Live("waiting for the first second", auto_refresh=False) as live:
        for table in shown:
            live.update(table, refresh=True)
