"""What verbs share: how one is added, its keys, numbers from text, files that are written."""

import argparse
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_verb(
    verbs: Any,
    name: str,
    question: str,
    example: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Returns the parser of a verb that answers ``question``."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=question,
        description=question,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=run)
    return verb


def add_json(to: Any) -> None:
    """Adds the flag that every verb has, to a parser or a group of one."""
    to.add_argument("--json", action="store_true", help="print JSON")


def add_replica(verb: argparse.ArgumentParser) -> None:
    """Adds which replica of a server is meant."""
    verb.add_argument(
        "--replica", type=int, default=0, metavar="NUMBER", help="of the server, from 0 [0]"
    )


def add_keys(verb: argparse.ArgumentParser) -> None:
    """Adds the keys of a server that takes commands."""
    verb.add_argument("--api-key", metavar="KEY", help="the server's")
    verb.add_argument("--admin-api-key", metavar="KEY", help="the server's, if it has one")


def print_json(data: Any) -> None:
    """Prints data for a program to read."""
    print(json.dumps(data, indent=2))


def write(path: Path, text: str) -> None:
    """Writes a file.

    Raises:
        ValueError: It cannot be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}); allowed: a file in a folder that may be "
            "written; fix: name another."
        ) from error


def positive(text: str) -> int:
    """Returns a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number above 0")
    return int(text)


def _number(what: str, is_allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Returns the type of an argument that is ``what``."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_allowed(value := float(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text} must be a {what}")

    return read


seconds = _number("number of seconds from 0.1 to 3600", lambda value: 0.1 <= value <= 3600)
chance = _number("number from 0 to below 1, such as 0.7", lambda value: 0 <= value < 1)
