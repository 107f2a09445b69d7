"""Checks every result file: each summary recomputed from its raw repeats, and its provenance.

Results that later ones replaced, and those of studies that are gone, lie in results/archive/: their
provenance is checked, their figures are what they were.

    python -m benchmarks.verify          # or: make verify-results

A file passes if it is compressed and has the agreed shape, its figures follow from the raw repeats
beside them, and the code that ran is known: that of its commit or, where this history lacks it,
that of this checkout. Findings are printed and fail nothing: a target that was missed, a part that
was not measured, files of sglang_adaptive_spec/ whose code changed after the measurement.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.stats.differences import Gap
from benchmarks.stats.provenance import (
    ARCHIVE,
    CODE,
    RESULTS,
    ROOT,
    SUFFIXES,
    code_sha256,
    code_sha256_at,
    git,
    is_ancestor,
)
from benchmarks.stats.result_file import COMPRESSED, read_result
from benchmarks.studies import (
    attention_dp,
    backends,
    never_below_none,
    overhead,
)
from benchmarks.studies.defaults import summary as defaults
from benchmarks.studies.matrix import kinds as matrix_kinds
from benchmarks.studies.matrix import standalone as matrix_standalone
from benchmarks.studies.matrix import starts as matrix_starts
from benchmarks.studies.matrix import tables as matrix_tables
from benchmarks.studies.matrix.check import (
    SMALL_BATCH_SIZES,
    check_deeper,
    check_matrix,
    check_over_earlier,
    check_two_kinds,
)
from benchmarks.studies.ramp import summary as ramp_summary
from benchmarks.studies.real_text import summary as real_text
from benchmarks.studies.sampling import tables as sampling_tables
from benchmarks.studies.sampling.check import check_packed, check_sampling
from benchmarks.studies.simulator import summary as simulator
from benchmarks.studies.transition import summary as transition_summary

Raw = Mapping[str, Any]

PROVENANCE_KEYS = {"git_sha", "code_sha256", "host_version", "gpu", "argv", "date"}


def check_provenance(record: Raw, root: Path = ROOT) -> list[str]:
    """Returns what is wrong with a file's provenance, seen from the checkout at ``root``."""
    missing = PROVENANCE_KEYS - record.keys()
    if missing:
        return [f"provenance lacks {sorted(missing)}"]
    sha = record["git_sha"]
    if not is_ancestor(sha, root):
        if record["code_sha256"] == code_sha256(root):
            return []
        return [f"git_sha {sha} is no ancestor of HEAD, and the code that ran is not this one"]
    if record["code_sha256"] != code_sha256_at(sha, root):
        return [f"the code that ran is not the code at {sha}"]
    return []


def changed_since(record: Raw, root: Path = ROOT) -> list[str]:
    """Returns the files of the package that do not run as they were measured, by name below it.

    A file that only moved, or of which only imports, comments and docstrings changed, runs as then.
    """
    sha = record["git_sha"]
    if not is_ancestor(sha, root):  # then what ran is this very code
        return []
    listed = git(root, "diff", "-M", "--name-status", "--relative", sha, "--", CODE).splitlines()
    new = git(root, "ls-files", "--others", "--exclude-standard", "--", CODE).splitlines()
    # Status and name, of a moved file both names; an untracked one has no status.
    names = [(fields[1], fields[-1]) for fields in (line.split("\t") for line in listed)]
    return sorted(
        now.removeprefix(f"{CODE}/")
        for then, now in [*names, *((name, name) for name in new)]
        if now.endswith(SUFFIXES) and code_at(sha, then, root) != code_of(now, text_of(root / now))
    )


def text_of(path: Path) -> str:
    """Returns a file's text; none if it is gone."""
    return path.read_text() if path.exists() else ""


@functools.cache
def code_at(commit: str, name: str, root: Path) -> str:
    """Returns what of a file ran at a commit; that of an empty one if it was not there."""
    try:
        text = git(root, "show", f"{commit}:{name}")
    except subprocess.CalledProcessError:
        text = ""
    return code_of(name, text)


def code_of(name: str, text: str) -> str:
    """Returns what of a file's text runs; of Python without imports, comments and docstrings."""
    return ast.dump(Bare().visit(ast.parse(text))) if name.endswith(".py") else text


class Bare(ast.NodeTransformer):
    """Takes imports and strings that stand alone out of a module."""

    def visit_Import(self, _node: ast.Import) -> None:
        """Removes an import."""

    def visit_ImportFrom(self, _node: ast.ImportFrom) -> None:
        """Removes an import."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Removes a docstring."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


class Check(NamedTuple):
    """How a result file is checked, and how its targets are shown."""

    problems: Callable[[Raw], list[str]]
    targets: Callable[[Raw], str]


CHECKS = {
    **dict.fromkeys(
        (
            "backends-h200.json.xz",
            "backends-architectures-h200.json.xz",
            "backends-shared-index-h200.json.xz",
            "backends-chain-h100.json.xz",
            "backends-flashinfer-h100.json.xz",
            "backends-before-h100.json.xz",
            "backends-recut-h200.json.xz",
            "backends-dsa-h200.json.xz",
            "backends-dsa-short-h200.json.xz",
            "backends-lora-h200.json.xz",
            "backends-lora-moe-h100.json.xz",
            "backends-dp-h100.json.xz",
            "backends-dp-h200.json.xz",
            "backends-pair-h200.json.xz",
            "backends-packed-h200.json.xz",
            "backends-packed-flashinfer-h200.json.xz",
            "backends-confident-h200.json.xz",
            "backends-drafters-h200.json.xz",
        ),
        Check(backends.check_backends, backends.figure_table),
    ),
    **dict.fromkeys(
        (
            "matrix-h200-fa3.json.xz",
            "matrix-h200-flashinfer.json.xz",
        ),
        Check(check_matrix, matrix_tables.figure_table),
    ),
    "matrix-starts-h200-fa3.json.xz": Check(matrix_starts.check_starts, matrix_starts.figure_table),
    "matrix-over-04e9c7a-h200.json.xz": Check(
        functools.partial(check_over_earlier, arm="at-04e9c7a"), matrix_tables.figure_table
    ),
    "matrix-over-51b1970-h200.json.xz": Check(
        functools.partial(check_deeper, arm="at-51b1970"), matrix_tables.figure_table
    ),
    "matrix-over-51b1970-two-kinds-h200.json.xz": Check(
        functools.partial(check_two_kinds, arm="at-51b1970"), matrix_tables.figure_table
    ),
    "matrix-standalone-h200-fa3.json.xz": Check(
        matrix_standalone.check_standalone, matrix_standalone.figure_table
    ),
    "matrix-kinds-h200-fa3.json.xz": Check(matrix_kinds.check_kinds, matrix_kinds.figure_table),
    "matrix-kinds-h200-flashinfer.json.xz": Check(
        functools.partial(
            matrix_kinds.check_kinds,
            kinds=matrix_kinds.FLASHINFER_KINDS,
            arms=matrix_kinds.FLASHINFER_ARMS,
        ),
        matrix_kinds.figure_table,
    ),
    "matrix-small-h100-fa3.json.xz": Check(
        functools.partial(check_matrix, batch_sizes=SMALL_BATCH_SIZES, gpu="H100"),
        matrix_tables.figure_table,
    ),
    "matrix-small-0523-h200-fa3.json.xz": Check(
        functools.partial(check_matrix, batch_sizes=SMALL_BATCH_SIZES), matrix_tables.figure_table
    ),
    **dict.fromkeys(
        ("transition-h200-fa3.json.xz", "transition-none-smollm2-h200.json.xz"),
        Check(transition_summary.check_transition, transition_summary.figure_table),
    ),
    "transition-none-smollm2-h100.json.xz": Check(
        functools.partial(transition_summary.check_transition, gpu="H100"),
        transition_summary.figure_table,
    ),
    "never-below-none-smollm2-h100.json.xz": Check(
        functools.partial(never_below_none.check_never_below_none, gpu="H100"),
        never_below_none.figure_table,
    ),
    **dict.fromkeys(
        (
            "never-below-none-h200.json.xz",
            "never-below-none-16-40-h200.json.xz",
            "never-below-none-smollm2-h200.json.xz",
            "never-below-none-smollm2-shapes-h200.json.xz",
        ),
        Check(never_below_none.check_never_below_none, never_below_none.figure_table),
    ),
    "defaults-h200.json.xz": Check(defaults.check_defaults, defaults.figure_table),
    "defaults-start-h100.json.xz": Check(defaults.check_starts, defaults.start_table),
    "real-text-h200.json.xz": Check(real_text.check_real_text, real_text.figure_table),
    "real-text-kinds-h200.json.xz": Check(real_text.check_kinds, real_text.figure_table),
    "ngram-text-h200.json.xz": Check(real_text.check_table, real_text.figure_table),
    "ramp-h200-fa3.json.xz": Check(ramp_summary.check_ramp, ramp_summary.figure_table),
    **dict.fromkeys(
        (
            "overhead-fa3.json.xz",
            "overhead-before-h200.json.xz",
            "overhead-over-04e9c7a-h200.json.xz",
            "overhead-over-3738e4f-h200.json.xz",
        ),
        Check(overhead.check_overhead, overhead.figure_table),
    ),
    "sampling-h200.json.xz": Check(check_sampling, sampling_tables.figure_table),
    "sampling-packed-h200.json.xz": Check(check_packed, sampling_tables.figure_table),
    "sampling-of-host-h200.json.xz": Check(check_sampling, sampling_tables.cell_table),
    "simulator.json.xz": Check(simulator.check_simulator, simulator.figure_table),
    **dict.fromkeys(
        ("dp-attention-h100.json.xz", "dp-attention-shallow-h200.json.xz"),
        Check(attention_dp.check_attention_dp, attention_dp.figure_table),
    ),
}
# Not a result: read, and thereby checked, by the check of simulator.json.xz.
INPUTS = {simulator.COSTS}


def check_file(name: str, result: Raw) -> list[str]:
    """Returns everything that is wrong with one result file."""
    check = CHECKS.get(name)
    if check is None:
        return [f"no check is written for {name}"]
    return [*check_kept(name, result), *check.problems(result)]


def check_kept(name: str, result: Raw) -> list[str]:
    """Returns what is wrong with how a file is kept, and where it says that it comes from."""
    problems = [] if name.endswith(COMPRESSED) else [f"not compressed: xz -9e {name}"]
    return problems + check_provenance(result.get("provenance", {}))


def main() -> int:
    """Checks every current result, and where each archived one comes from; returns 1 if not ok."""
    num_faults = 0
    there = {path.name for path in RESULTS.glob("*.json*")} - INPUTS
    for name in sorted(there | CHECKS.keys()):
        if name not in there:
            num_faults += show(name, ["missing"])
            continue
        result = read_result(RESULTS / name)
        faults = show(name, check_file(name, result))
        num_faults += faults
        if not faults:
            if changed := changed_since(result["provenance"]):
                sha = result["provenance"]["git_sha"]
                print(f"  measured at {sha[:10]}; changed since: {', '.join(changed)}")
            print(CHECKS[name].targets(result))
    for path in sorted(ARCHIVE.glob("*.json*")):
        problems = check_kept(path.name, read_result(path))
        num_faults += show(f"{ARCHIVE.name}/{path.name}", problems)
    return 1 if num_faults else 0


def show(name: str, problems: Sequence[str]) -> int:
    """Prints what is wrong with a file and what was not measured; returns the number of faults."""
    num_faults = sum(not isinstance(problem, Gap) for problem in problems)
    print(f"{name}: {'ok' if not num_faults else 'wrong'}")
    for problem in problems:
        print(f"  {'not measured: ' if isinstance(problem, Gap) else ''}{problem}")
    return num_faults


if __name__ == "__main__":
    sys.exit(main())
