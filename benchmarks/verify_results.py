"""Checks every result file: each summary recomputed from its raw repeats, and its provenance.

    python -m benchmarks.verify_results          # or: make verify-results

A file passes if it has the agreed shape, its figures follow from the raw repeats beside them, and
the code that ran is known: that of its commit or, where this history lacks it, that of this
checkout. Findings are printed and fail nothing: a target that was missed, a part that was not
measured, files of sglang_adaptive_spec/ whose code changed after the measurement.
"""

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    backends,
    context,
    defaults,
    matrix_tables,
    matrix_trees,
    overhead,
    overlap_summary,
    penalties,
    ramp_summary,
    rows,
    sampling_tables,
    simulator,
    summary,
    tensor_parallel,
    transition_summary,
    tree_acceptance,
)
from benchmarks.differences import Gap, at_least, differences, keys, measured_on
from benchmarks.matrix_check import check_matrix
from benchmarks.provenance import (
    CODE,
    ROOT,
    SUFFIXES,
    code_sha256,
    code_sha256_at,
    git,
    is_ancestor,
)
from benchmarks.sampling_check import check_sampling
from benchmarks.tables import target_table

RESULTS = ROOT / "benchmarks" / "results"
Raw = Mapping[str, Any]

PROVENANCE_KEYS = {"git_sha", "code_sha256", "host_version", "gpu", "argv", "date"}
SLICE_KEYS = {
    "provenance",
    "arms",
    "overhead_us_per_round",
    "switch_us",
    "captures_after_ready",
    "plain_over_none",
    "smollm2",
    "raw",
}
ARM_KEYS = {"ready_s", "tiers_s", "tiers_gb", "tokens_per_s", "raw"}
PHASE_KEYS = {"tokens_per_s", "accept_length"}
# What the slice must hold at least; more batch sizes or acceptances are welcome.
BATCH_SIZES = {"1", "5", "8", "24", "48", "64", "100"}
PLAIN_BATCH_SIZES = {"1", "16", "64", "128"}
ACCEPTANCE = {"natural", "sim3.5"}
MIN_REPEATS = 3


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


def check_slice(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the first slice."""
    problems = _slice_shape(result)
    if problems:
        return problems
    passes = {name: arm["raw"] for name, arm in result["arms"].items()}
    again = summary.build_result(result["provenance"], passes, result["raw"])
    return differences(result, again, "")


def _slice_shape(result: Raw) -> list[str]:
    problems = keys("file", result, SLICE_KEYS)
    problems += keys("arms", result.get("arms", {}), set(summary.REPORTED_ARMS))
    if problems:
        return problems
    problems += measured_on(result["provenance"])
    for name, arm in result["arms"].items():
        problems += keys(f"arms.{name}", arm, ARM_KEYS)
        if not problems:
            problems += _arm_cells(name, arm)
    problems += at_least("plain_over_none", result["plain_over_none"], PLAIN_BATCH_SIZES)
    problems += at_least("overhead_us_per_round", result["overhead_us_per_round"], BATCH_SIZES)
    problems += at_least("smollm2", result["smollm2"], set(summary.REPORTED_ARMS))
    for arm, phases in result["smollm2"].items():
        for phase, figures in phases.items():
            problems += keys(f"smollm2.{arm}.{phase}", figures, PHASE_KEYS)
    return problems


def _arm_cells(name: str, arm: Raw) -> list[str]:
    rates = arm["tokens_per_s"]
    problems = at_least(f"arms.{name}.tokens_per_s", rates, ACCEPTANCE)
    for acceptance, by_size in rates.items():
        problems += at_least(f"arms.{name}.tokens_per_s.{acceptance}", by_size, BATCH_SIZES)
        for size in by_size:
            count = len(summary.repeats_of(arm["raw"], acceptance, size))
            if count < MIN_REPEATS:
                problems.append(f"arms.{name} {acceptance} {size}: {count} repeats")
    return problems


class Check(NamedTuple):
    """How a result file is checked, and how its targets are shown."""

    problems: Callable[[Raw], list[str]]
    targets: Callable[[Raw], str]


CHECKS = {
    **dict.fromkeys(
        (
            "backends-h200.json",
            "backends-architectures-h200.json",
            "backends-shared-index-h200.json",
            "backends-chain-h100.json",
        ),
        Check(backends.check_backends, backends.figure_table),
    ),
    "slice-h200.json": Check(check_slice, target_table),
    **dict.fromkeys(
        ("matrix-h200.json", "matrix-h200-shared.json"),
        Check(check_matrix, matrix_tables.figure_table),
    ),
    **dict.fromkeys(
        (
            "matrix-trees-h200.json",
            "matrix-trees-settled-h200.json",
            "matrix-trees-h200-shared.json",
        ),
        Check(matrix_trees.check_matrix_trees, matrix_trees.figure_table),
    ),
    **dict.fromkeys(
        (
            "transition-h200.json",
            "transition-two-h200.json",
            "transition-two-smollm2-h200.json",
            "transition-h200-shared.json",
        ),
        Check(transition_summary.check_transition, transition_summary.figure_table),
    ),
    "defaults-h200.json": Check(defaults.check_defaults, defaults.figure_table),
    "defaults-apart-h200.json": Check(
        functools.partial(defaults.check_defaults, arms=defaults.COMPARED), defaults.figure_table
    ),
    # Before starts kept their KV pool: its passes are checked alone.
    "defaults-noisy-h200.json": Check(defaults.check_passes, defaults.figure_table),
    "defaults-start-h100.json": Check(defaults.check_starts, defaults.start_table),
    "context-fa3-h200.json": Check(context.check_context, context.wave_table),
    "penalties-h200.json": Check(penalties.check_penalties, penalties.arm_table),
    "rows-cpu.json": Check(rows.check_rows, rows.size_table),
    "ramp-h200.json": Check(ramp_summary.check_ramp, ramp_summary.arm_table),
    **dict.fromkeys(
        ("overhead.json", "overhead-shared.json", "overhead-before-h200.json"),
        Check(overhead.check_overhead, overhead.figure_table),
    ),
    **dict.fromkeys(
        ("overlap-h200.json", "overlap-one-h200.json", "overlap-grammar-h200.json"),
        Check(overlap_summary.check_overlap, overlap_summary.figure_table),
    ),
    "overlap-plan-stream-h200.json": Check(
        overlap_summary.check_overlap, overlap_summary.cell_table
    ),
    "sampling-h200.json": Check(check_sampling, sampling_tables.figure_table),
    "sampling-of-host-h200.json": Check(check_sampling, sampling_tables.cell_table),
    "simulator.json": Check(simulator.check_simulator, simulator.figure_table),
    **dict.fromkeys(
        ("tensor-parallel-h200.json", "tensor-parallel-cpu.json"),
        Check(tensor_parallel.check_tensor_parallel, tensor_parallel.figure_table),
    ),
    "tree-acceptance.json": Check(
        tree_acceptance.check_tree_acceptance, tree_acceptance.shape_table
    ),
}
# Not a result: read, and thereby checked, by the check of simulator.json.
INPUTS = {simulator.COSTS}
# SGLang alone was measured: none of our code ran, so it may change.
WITHOUT_OURS = ("tree-acceptance.json",)
# Written when it was first measured; the others are asked for as soon as they exist.
REQUIRED = ("slice-h200.json",)


def check_file(path: Path) -> list[str]:
    """Returns everything that is wrong with one result file."""
    check = CHECKS.get(path.name)
    if check is None:
        return [f"no check is written for {path.name}"]
    result = json.loads(path.read_text())
    origin = result.get("provenance", {})
    if path.name in WITHOUT_OURS:
        missing = PROVENANCE_KEYS - origin.keys()
        problems = [f"provenance lacks {sorted(missing)}"] if missing else []
    else:
        problems = check_provenance(origin)
    return [*problems, *check.problems(result)]


def main() -> int:
    """Checks every file under benchmarks/results/; returns 1 if one is missing or wrong."""
    num_problems = 0
    there = {path for path in RESULTS.glob("*.json") if path.name not in INPUTS}
    for path in sorted(there.union(RESULTS / name for name in REQUIRED)):
        problems = check_file(path) if path.exists() else ["missing"]
        num_faults = sum(not isinstance(problem, Gap) for problem in problems)
        num_problems += num_faults
        print(f"{path.name}: {'ok' if not num_faults else 'wrong'}")
        for problem in problems:
            print(f"  {'not measured: ' if isinstance(problem, Gap) else ''}{problem}")
        if not num_faults:
            result = json.loads(path.read_text())
            changed = changed_since(result["provenance"]) if path.name not in WITHOUT_OURS else []
            if changed:
                sha = result["provenance"]["git_sha"]
                print(f"  measured at {sha[:10]}; changed since: {', '.join(changed)}")
            print(CHECKS[path.name].targets(result))
    return 1 if num_problems else 0


if __name__ == "__main__":
    sys.exit(main())
