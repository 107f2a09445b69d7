"""What the demo concludes: figures per arm and phase, the checks, demo/report.json.

Every figure is computed from the answers and counters that the report also holds.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from examples.demo.prompts import PHASES
from examples.demo.traffic import Answer, Snapshot
from sglang_adaptive_spec.contract.versions import versions_report

REFERENCE = "none"
EMA, GOODPUT = ADAPTIVE = ("ema", "goodput")  # ADAPTIVE_EAGLE, by policy
MIN_TIERS, MIN_ROUNDS_PER_TIER, MIN_SWITCHES = 3, 20, 5


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One server's answers, in the order of the prompts."""

    name: str
    argv: list[str]
    ready_s: float
    answers: list[Answer]
    snapshots: list[Snapshot]
    adaptive_spec: dict[str, Any] | None  # /server_info after the last answer


@dataclass(frozen=True, slots=True)
class Figures:
    """Speed and acceptance over some answers."""

    num_tokens: int
    seconds: float
    num_rounds: int
    num_correct_drafts: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of request time."""
        return self.num_tokens / self.seconds

    @property
    def accept_length(self) -> float:
        """Tokens per round, the bonus token included."""
        return self.num_correct_drafts / self.num_rounds + 1

    def to_json(self) -> dict[str, float]:
        """Returns sums and rates."""
        rates = {"tokens_per_s": self.tokens_per_s, "accept_length": self.accept_length}
        return {**asdict(self), **rates}


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of success."""

    claim: str
    got: str
    is_met: bool


def figures_of(answers: Sequence[Answer]) -> Figures:
    """Sums up answers."""
    return Figures(
        num_tokens=sum(len(answer.output_ids) for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
        num_rounds=sum(answer.num_rounds for answer in answers),
        num_correct_drafts=sum(answer.num_correct_drafts for answer in answers),
    )


def by_phase(arm: ArmResult) -> dict[str, Figures]:
    """Returns the figures of each phase."""
    return {p: figures_of([a for a in arm.answers if a.phase == p]) for p in PHASES}


def rounds_by_phase(snapshots: Sequence[Snapshot]) -> dict[str, dict[str, int]]:
    """Returns the rounds of every tier in each phase: counters at its end minus at its start."""
    starts: dict[str, Snapshot] = {}
    for snapshot in snapshots:
        starts.setdefault(snapshot.phase, snapshot)
    marks = [*starts.values(), *snapshots[-1:]]
    return {
        start.phase: {steps: end.rounds[steps] - start.rounds[steps] for steps in end.rounds}
        for start, end in pairwise(marks)
    }


def digest_of(answers: Sequence[Answer]) -> str:
    """Returns the sha256 over all token ids, in order."""
    ids = [list(answer.output_ids) for answer in answers]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def num_identical(arm: ArmResult, reference: ArmResult) -> int:
    """Counts answers whose token ids equal the reference's."""
    pairs = zip(arm.answers, reference.answers, strict=True)
    return sum(a.output_ids == b.output_ids for a, b in pairs)


def checks_of(arms: Sequence[ArmResult]) -> list[Check]:
    """Returns what must hold for the demo to succeed."""
    named = {arm.name: arm for arm in arms}
    spec = named[EMA].adaptive_spec or {}
    rounds: dict[str, int] = spec.get("rounds", {})
    used = [steps for steps, count in rounds.items() if count >= MIN_ROUNDS_PER_TIER]
    switches = sum(spec.get("switches", {}).values())
    return [
        Check(
            f"{EMA}: at least {MIN_TIERS} tiers with at least {MIN_ROUNDS_PER_TIER} rounds each",
            f"rounds by num_steps {rounds}",
            len(used) >= MIN_TIERS,
        ),
        Check(f"{EMA}: at least {MIN_SWITCHES} switches", str(switches), switches >= MIN_SWITCHES),
        *(_identity_check(named[name], named[REFERENCE]) for name in ADAPTIVE),
    ]


def _identity_check(arm: ArmResult, reference: ArmResult) -> Check:
    same, total = num_identical(arm, reference), len(reference.answers)
    claim = f"{arm.name}: every answer equals no speculation, token for token"
    return Check(claim, f"{same} of {total}", same == total > 0)


def last_line(arms: Sequence[ArmResult]) -> str:
    """Returns the verdict on identity of all adaptive answers."""
    named = {arm.name: arm for arm in arms}
    reference, adaptive = named[REFERENCE], [named[name] for name in ADAPTIVE]
    same = sum(num_identical(arm, reference) for arm in adaptive)
    total = len(adaptive) * len(reference.answers)
    if same == total > 0:
        num_tokens = sum(figures_of(arm.answers).num_tokens for arm in adaptive)
        return f"identical: yes ({total} answers, {num_tokens} tokens)"
    return f"identical: no ({total - same} of {total} answers differ)"


def wall_times(arms: Sequence[ArmResult]) -> dict[str, dict[str, float]]:
    """Returns each arm's seconds over all requests, and `goodput`'s as a share of them."""
    seconds = {arm.name: figures_of(arm.answers).seconds for arm in arms}
    return {
        name: {"seconds": own, "goodput_share": seconds[GOODPUT] / own}
        for name, own in seconds.items()
    }


def best_static(arms: Sequence[ArmResult]) -> str:
    """Returns the fastest arm that never changes its steps, none included."""
    times = wall_times(arms)
    return min(times.keys() - set(ADAPTIVE), key=lambda name: times[name]["seconds"])


def wall_time_lines(arms: Sequence[ArmResult]) -> list[str]:
    """Returns how `goodput` compares over the whole demo with every other arm."""
    times = wall_times(arms)
    rest = {name: entry for name, entry in times.items() if name != GOODPUT}
    best = best_static(arms)
    share = times[best]["goodput_share"]
    verdict = f"{share:.3f} of the best static arm, {best}"
    if share > 1:
        verdict += f": SLOWER by {share - 1:.3f}"
    return [
        f"wall time of all requests: {GOODPUT} {times[GOODPUT]['seconds']:.1f} s, {verdict}",
        *(
            f"  {name.ljust(10)}{entry['seconds']:7.1f} s; {GOODPUT} takes "
            f"{entry['goodput_share']:.3f} of it"
            for name, entry in rest.items()
        ),
    ]


def table(arms: Sequence[ArmResult]) -> str:
    """Returns the printable table: arms by phases, and the shares of rounds per tier."""
    reference = next(arm for arm in arms if arm.name == REFERENCE)
    columns = [*PHASES, "all"]
    lines = ["tok/s (accept length)".ljust(22) + "".join(c.rjust(16) for c in columns)]
    for arm in arms:
        cells = [*by_phase(arm).values(), figures_of(arm.answers)]
        lines.append(arm.name.ljust(22) + "".join(_cell(figures) for figures in cells))
    for arm in arms:
        if shares := tier_shares(arm):
            lines += ["", f"rounds of {arm.name}".ljust(22) + "".join(c.rjust(16) for c in columns)]
            lines += [
                f"  {steps} steps".ljust(22)
                + "".join(f"{row[steps]:.2f}".rjust(16) for row in shares)
                for steps in shares[0]
            ]
    lines += ["", "answers equal to no speculation, sha256 of all token ids"]
    for arm in arms:
        same = f"{num_identical(arm, reference)}/{len(reference.answers)}"
        lines.append(f"{arm.name.ljust(22)}{same.rjust(8)}  {digest_of(arm.answers)}")
    return "\n".join(lines)


def tier_shares(arm: ArmResult) -> list[dict[str, float]]:
    """Returns the share of rounds of each tier: one entry per phase, then all together."""
    if not arm.snapshots:
        return []
    phases = rounds_by_phase(arm.snapshots)
    counts = [phases[phase] for phase in PHASES]
    counts.append({steps: sum(row[steps] for row in counts) for steps in counts[0]})
    return [{s: n / max(1, sum(row.values())) for s, n in row.items()} for row in counts]


def _cell(figures: Figures) -> str:
    return f"{figures.tokens_per_s:.1f} ({figures.accept_length:.2f})".rjust(16)


def report_json(arms: Sequence[ArmResult], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the whole report."""
    checks = checks_of(arms)
    reference = next(arm for arm in arms if arm.name == REFERENCE)
    return {
        "provenance": provenance(),
        "settings": settings,
        "passed": all(check.is_met for check in checks),
        "checks": [asdict(check) for check in checks],
        "verdict": last_line(arms),
        "wall_times": wall_times(arms),
        "best_static": best_static(arms),
        "arms": {arm.name: _arm_json(arm, reference) for arm in arms},
    }


def _arm_json(arm: ArmResult, reference: ArmResult) -> dict[str, Any]:
    return {
        "argv": arm.argv,
        "ready_s": arm.ready_s,
        "all": figures_of(arm.answers).to_json(),
        "phases": {phase: figures.to_json() for phase, figures in by_phase(arm).items()},
        "rounds_by_phase": rounds_by_phase(arm.snapshots),
        "num_identical": num_identical(arm, reference),
        "sha256": digest_of(arm.answers),
        "adaptive_spec": arm.adaptive_spec,
        "answers": [asdict(answer) for answer in arm.answers],
        "snapshots": [asdict(snapshot) for snapshot in arm.snapshots],
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
