"""Writes docs/results.md from benchmarks/results/current: every limit, what was measured, verdict.

python -m tools.write_results
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.stats.figures import MET, MISSED, NOT_KNOWN
from benchmarks.stats.provenance import RESULTS, ROOT
from benchmarks.stats.result_file import read_result
from benchmarks.verify import CHECKS

PAGE = ROOT / "docs" / "results.md"
# A page's sections: its title, and how the names of its files begin.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Real text": ("real-text",),
    "Against every fixed depth": ("matrix-h200", "matrix-small", "matrix-starts"),
    "A length for each request": ("matrix-kinds",),
    "Other drafts": ("matrix-standalone", "ngram-text"),
    "Zero steps against no speculation": ("never-below-none",),
    "When the load or the text changes": ("transition", "ramp"),
    "Nothing set by hand": ("defaults",),
    "The same text": ("backends", "sampling"),
    "Several ranks": ("dp-attention",),
    "What it costs": ("overhead",),
    "The simulator": ("simulator",),
    "Code against earlier code": ("matrix-over", "overhead-over"),
}
BEFORE = "-before-"  # in the name of a file
ROW = re.compile(
    rf"(.+?)  +(-?[\d.]+)  +(.+?)  +([<>]=) (\S+) +({'|'.join((MET, MISSED, NOT_KNOWN))})"
)


class Row(NamedTuple):
    """One limit of one file."""

    file: str
    claim: str
    measured: str
    interval: str
    limit: str
    verdict: str

    def cells(self) -> str:
        """Returns the row as Markdown has it."""
        verdict = f"**{self.verdict.lower()}**" if self.verdict == MISSED else self.verdict
        return f"| {self.claim} | {self.measured} | {self.interval} | {self.limit} | {verdict} |"


def rows_of(name: str, text: str) -> Iterator[Row]:
    """Yields the limits that a file's table of targets has."""
    for line in text.splitlines():
        if found := ROW.fullmatch(line.rstrip()):
            claim, measured, interval, sign, limit, verdict = found.groups()
            ends = interval.replace(" .. ", " to ")
            yield Row(name, claim.replace("|", "/"), measured, ends, f"{sign} {limit}", verdict)


def source_of(name: str, result: Mapping[str, Any]) -> str:
    """Returns what a file is and where it comes from."""
    origin = result["provenance"]
    gpu = str(origin["gpu"]).split(",", maxsplit=1)[0]
    day = str(origin["date"])[:10]
    return f"`{name}`: {gpu}, SGLang {origin['host_version']}, {origin['git_sha'][:7]}, {day}."


def section_of(name: str) -> str:
    """Returns the title of the section that a file belongs to: that of the longest beginning.

    Raises:
        ValueError: There is none.
    """
    begun = [
        (len(begin), title)
        for title, begins in SECTIONS.items()
        for begin in begins
        if name.startswith(begin)
    ]
    return max(begun)[1]


def page() -> str:
    """Returns the text of the page."""
    results = {name: read_result(RESULTS / name) for name in sorted(CHECKS) if BEFORE not in name}
    rows = {name: list(rows_of(name, CHECKS[name].targets(results[name]))) for name in results}
    every = [row for name in rows for row in rows[name]]
    counts = Counter(row.verdict for row in every)
    lines = [
        "# Results",
        "",
        f"Of {len(every)} limits {counts[MET]} are met, {counts[MISSED]} are missed, and "
        f"{counts[NOT_KNOWN]} are not known.",
        "A limit is met where the value meets it and half the 95 % interval is at most 3 %.",
        "Where the interval is wider, it is not known, unless all of it is beyond the limit.",
        '"Worst cell" is the one with the worst verdict: what is missed or not known goes before',
        "what is met, also where its ratio is larger.",
        "Each file names the commit that ran; the code may have changed since.",
        f"Left out are files without a limit, and those with `{BEFORE}` in their names: what was",
        "measured before the code was mended.",
        "",
        "`python -m tools.write_results` writes this page from `benchmarks/results/current`.",
        "[methods.md](methods.md) says how it was measured, "
        "[benchmarks.md](benchmarks.md) what limits it.",
        "",
        "## What is missed",
        "",
        *table([row for row in every if row.verdict == MISSED], with_file=True),
    ]
    for title in SECTIONS:
        files = [name for name in results if section_of(name) == title and rows[name]]
        lines += ["", f"## {title}"]
        for name in files:
            lines += ["", source_of(name, results[name]), "", *table(rows[name])]
    return "\n".join(lines) + "\n"


def table(rows: list[Row], with_file: bool = False) -> list[str]:
    """Returns rows as a Markdown table, with the file before each where they are of several."""
    head = "| limit on | measured | 95 % interval | limit | verdict |"
    made = [head, "|---|---|---|---|---|", *(row.cells() for row in rows)]
    if not with_file:
        return made
    files = ["| file ", "|---", *(f"| `{row.file}` " for row in rows)]
    return [before + line for before, line in zip(files, made, strict=True)]


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
