"""The command line: `sglang-adaptive-spec VERB`. Each verb is a module and answers a question.

These modules parse and print. The work is in host/, operate/ and simulate/.
"""

import argparse
import sys
from collections.abc import Sequence

from sglang_adaptive_spec.cli import check, explain, pin, report, simulate, tune, watch

VERBS = (check, explain, pin, report, simulate, tune, watch)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    verbs = parser()
    arguments, unknown = verbs.parse_known_args(argv)
    if unknown:
        hint = f" ({check.BEHIND})" if arguments.verb == "check" else ""
        verbs.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if arguments.verb is None:
        verbs.print_help(sys.stderr)
        return 2
    try:
        status: int = arguments.run(arguments)
    except ValueError as error:  # names what is wrong and how to fix it
        print(error, file=sys.stderr)
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs."""
    found = argparse.ArgumentParser(
        prog="sglang-adaptive-spec",
        description="Adaptive speculative decoding for SGLang.",
        epilog="`sglang-adaptive-spec VERB --help` has an example of each.",
    )
    verbs = found.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for each in VERBS:
        each.add_to(verbs)
    return found
