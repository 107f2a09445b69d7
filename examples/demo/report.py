"""What the demo concludes: the checks, the tables, demo/report.json.

Every figure is computed from the answers that the report also holds.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.demo.arms import NONE, OURS
from examples.demo.figures import (
    ArmResult,
    by_phase,
    figures_of,
    named,
    oracle_seconds,
    pairs_of,
    tier_shares,
)
from examples.demo.prompts import PHASES
from examples.demo.traffic import Answer
from sglang_adaptive_spec.contract.versions import versions_report

MIN_TIERS, MIN_ROUNDS_PER_TIER = 2, 10


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of success."""

    claim: str
    got: str
    is_met: bool


def digest_of(answers: Sequence[Answer]) -> str:
    """Returns the sha256 over all token ids, in order."""
    ids = [list(answer.output_ids) for answer in answers]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def num_identical(result: ArmResult, reference: ArmResult) -> int:
    """Counts answers whose token ids equal the reference's."""
    pairs = zip(result.answers, reference.answers, strict=True)
    return sum(a.output_ids == b.output_ids for a, b in pairs)


def checks_of(results: Sequence[ArmResult]) -> list[Check]:
    """Returns what must hold for the demo to succeed."""
    reference, ours = named(results)[NONE], named(results)[OURS]
    rounds: Mapping[str, int] = (ours.adaptive_spec or {}).get("rounds", {})
    used = [tier for tier, count in rounds.items() if count >= MIN_ROUNDS_PER_TIER]
    tiers = Check(
        f"{OURS}: at least {MIN_TIERS} tiers with at least {MIN_ROUNDS_PER_TIER} rounds each",
        f"rounds by num_steps {dict(rounds)}",
        len(used) >= MIN_TIERS,
    )
    return [tiers, *(_identity(each, reference) for each in results if each.arm.is_ours)]


def _identity(result: ArmResult, reference: ArmResult) -> Check:
    same, total = num_identical(result, reference), len(reference.answers)
    claim = f"{result.name}: every answer equals no speculation, token for token"
    return Check(claim, f"{same} of {total}", same == total > 0)


def last_line(results: Sequence[ArmResult]) -> str:
    """Returns the verdict on identity of all our answers."""
    reference = named(results)[NONE]
    ours = [each for each in results if each.arm.is_ours]
    same = sum(num_identical(each, reference) for each in ours)
    total = len(ours) * len(reference.answers)
    if same == total > 0:
        num_tokens = sum(figures_of(each.answers).num_tokens for each in ours)
        return f"identical: yes ({total} answers, {num_tokens} tokens)"
    return f"identical: no ({total - same} of {total} answers differ)"


def outcome(results: Sequence[ArmResult]) -> str:
    """Returns what was compared, and what came out, in a sentence or two."""
    over = "; ".join(f"{name}: {ratio}" for name, ratio in pairs_of(results).items())
    number, phases = len(results[0].answers), ", ".join(PHASES)
    return (
        f"Tokens/s of {OURS} over each other server, {number} prompts of {phases} (95 %): {over}."
    )


def speed_rows(results: Sequence[ArmResult]) -> list[list[str]]:
    """Returns arms by phases: tokens/s and accept length, and ours over each, in pairs."""
    pairs = pairs_of(results)
    rows = [["tok/s (accept length)", *PHASES, "all", f"{OURS} over it (95 %)"]]
    for each in results:
        cells = [*by_phase(each).values(), figures_of(each.answers)]
        over = str(pairs[each.name]) if each.name in pairs else ""
        shown = [f"{one.tokens_per_s:.1f} ({one.accept_length:.2f})" for one in cells]
        rows.append([each.name, *shown, over])
    total = figures_of(results[0].answers)
    best = total.num_tokens / oracle_seconds(results)
    rows.append(["oracle: best fixed arm of each phase", *[""] * len(PHASES), f"{best:.1f}", ""])
    return rows


def tier_rows(result: ArmResult) -> list[list[str]]:
    """Returns the share of rounds of an arm's tiers by phase."""
    shares = tier_shares(result)
    tiers = list(next(iter(shares.values()), {}))
    return [
        [f"share of rounds, {result.name}", *PHASES],
        *(
            [f"  {tier} steps", *(f"{shares.get(p, {}).get(tier, 0.0):.2f}" for p in PHASES)]
            for tier in tiers
        ),
    ]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as text, the first column to the left."""
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.rjust(width) if idx else cell.ljust(width)
            for idx, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def table(results: Sequence[ArmResult]) -> str:
    """Returns what is printed at the end."""
    reference = named(results)[NONE]
    parts = [text_table(speed_rows(results))]
    parts += [text_table(tier_rows(each)) for each in results if each.arm.is_ours]
    lines = ["answers equal to no speculation, sha256 of all token ids"]
    for each in results:
        same = f"{num_identical(each, reference)}/{len(reference.answers)}"
        lines.append(f"{each.name.ljust(16)}{same.rjust(8)}  {digest_of(each.answers)}")
    return "\n\n".join([*parts, "\n".join(lines)])


def report_json(results: Sequence[ArmResult], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the whole report."""
    checks = checks_of(results)
    reference = named(results)[NONE]
    return {
        "provenance": provenance(),
        "settings": settings,
        "passed": all(check.is_met for check in checks),
        "checks": [asdict(check) for check in checks],
        "verdict": last_line(results),
        "ours_over": {name: asdict(ratio) for name, ratio in pairs_of(results).items()},
        "oracle_seconds": oracle_seconds(results),
        "arms": {each.name: _arm_json(each, reference) for each in results},
    }


def _arm_json(result: ArmResult, reference: ArmResult) -> dict[str, Any]:
    return {
        "argv": result.argv,
        "ready_s": result.ready_s,
        "all": figures_of(result.answers).to_json(),
        "phases": {phase: figures.to_json() for phase, figures in by_phase(result).items()},
        "tier_shares": tier_shares(result),
        "num_identical": num_identical(result, reference),
        "sha256": digest_of(result.answers),
        "adaptive_spec": result.adaptive_spec,
        "answers": [asdict(answer) for answer in result.answers],
        "snapshots": [asdict(snapshot) for snapshot in result.snapshots],
    }


def provenance() -> dict[str, Any]:
    """Returns what was run, on what, and when."""
    return {
        "git_sha": _git("rev-parse", "HEAD"),
        "git_is_clean": _git("status", "--porcelain") == "",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "versions": {"python": platform.python_version(), **versions_report()},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg(),
        },
    }


def _git(*args: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *args]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no history
        return None
    return result.stdout.strip()
