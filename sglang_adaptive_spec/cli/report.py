"""`report`: what happened on a server, what stands out, what to do."""

import argparse
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.cli.parsing import (
    add_json,
    add_keys,
    add_replica,
    add_verb,
    print_json,
    write,
)
from sglang_adaptive_spec.operate.report.page import Story, as_data, render, report_page
from sglang_adaptive_spec.operate.report.story import story_of_server, story_of_trace


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "report",
        "Why is it slower than I expected, and what can I do?",
        "sglang-adaptive-spec report http://127.0.0.1:30000 --out report.html",
        run,
    )
    verb.add_argument(
        "source", metavar="FILE|URL", help="a recorded trace, or a server: its minutes of a day"
    )
    verb.add_argument("--out", type=Path, metavar="FILE", help="write a page")
    verb.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="cost cache of the server that recorded the trace; default: an H200 as an example",
    )
    add_replica(verb)
    add_keys(verb)
    add_json(verb)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report, and writes the page that is asked for."""
    story = _story(arguments)
    if arguments.out is not None:
        write(arguments.out, report_page(story))
    if arguments.json:
        print_json(as_data(story))
    else:
        print(render(story))
    return 0


def _story(arguments: argparse.Namespace) -> Story:
    """Returns what `report` tells of.

    Raises:
        ValueError: The server or the file cannot be read.
    """
    where = arguments.source
    if "://" not in where:
        return story_of_trace(Path(where), arguments.costs)
    if arguments.costs is not None:
        raise ValueError(
            "--costs goes with a trace; a server measures its own; fix: leave it out, or name a "
            "trace."
        )
    keys = (arguments.api_key, arguments.admin_api_key)
    return story_of_server(where, arguments.replica, *keys)
