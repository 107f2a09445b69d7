"""`explain`: which tier pays for a batch and an acceptance."""

import argparse
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.cli.parsing import (
    add_json,
    add_verb,
    chance,
    positive,
    print_json,
    write,
)
from sglang_adaptive_spec.operate.explain.page import explain_page
from sglang_adaptive_spec.operate.explain.source import (
    Source,
    example,
    of_file,
    of_server,
)
from sglang_adaptive_spec.operate.explain.text import as_data, render
from sglang_adaptive_spec.simulate.true_costs import DEFAULT_EXAMPLE, EXAMPLES

EXAMPLE_BATCH, EXAMPLE_ACCEPTANCE = 16, 0.7


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "explain",
        "Does speculation pay, from which acceptance on, how deep?",
        "sglang-adaptive-spec explain --server http://127.0.0.1:30000",
        run,
    )
    where = verb.add_mutually_exclusive_group()
    where.add_argument("--server", metavar="URL", help="a server of ADAPTIVE_EAGLE")
    where.add_argument(
        "--costs",
        metavar="FILE",
        help=f"a cost cache, or an H200's: {', '.join(EXAMPLES)} [{DEFAULT_EXAMPLE}]",
    )
    verb.add_argument("--api-key", metavar="KEY", help="the server's")
    verb.add_argument(
        "--context", type=positive, metavar="TOKENS", help="of a request; default: as it is now"
    )
    verb.add_argument("--batch", type=positive, metavar="REQUESTS", help="of the equation")
    verb.add_argument(
        "--acceptance", type=chance, metavar="CHANCE", help="of the equation, 0 to below 1"
    )
    shown = verb.add_mutually_exclusive_group()
    add_json(shown)
    shown.add_argument("--html", type=Path, metavar="FILE", help="write a page with sliders")


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer, or writes the page."""
    source = _source(arguments)
    now = source.now
    size = arguments.batch or (now.batch_size if now else EXAMPLE_BATCH)
    acceptance = arguments.acceptance
    if acceptance is None:
        acceptance = round(now.acceptance, 2) if now else EXAMPLE_ACCEPTANCE
    data = as_data(source, size, acceptance)
    if arguments.html is not None:
        write(arguments.html, explain_page(data, source, size, acceptance))
        print(arguments.html)
    elif arguments.json:
        print_json(data)
    else:
        print(render(data, source))
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.server is not None:
        return of_server(arguments.server, arguments.context, arguments.api_key)
    costs = arguments.costs or DEFAULT_EXAMPLE
    if costs in EXAMPLES:
        return example(arguments.context, costs)
    return of_file(Path(costs), arguments.context)
