"""From raw passes to the figures of a result file: one function, used to write and to verify.

Every figure is the median over repeats of all passes of an arm, so that one disturbed repeat does
not move it; the spread is printed beside it, never stored as a figure.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.arms import ARMS

REPORTED_ARMS = ("none", "static-3", "builtin", "ema")
Raw = Mapping[str, Any]


def median(values: Sequence[float], digits: int) -> float:
    """Returns the median, rounded as the file states it."""
    return round(statistics.median(values), digits)


def merged(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind.

    Raises:
        ValueError: Two runs differ in code, host or GPU, or an arm was never run.
    """
    for key in ("code_sha256", "host_version", "torch_version", "gpu"):
        values = {record["provenance"][key] for record in records}
        if len(values) > 1:
            raise ValueError(f"the runs differ in {key}: {sorted(values)}; merge runs of one.")
    passes: dict[str, list[Raw]] = {"plain": [], "smollm2": []}
    for record in sorted(records, key=lambda record: str(record["provenance"]["date"])):
        for each in record["passes"]:
            key = each["arm"] if record["purpose"] == "slice" else record["purpose"]
            passes.setdefault(key, []).append(each)
    missing = {*REPORTED_ARMS, "ema-alternate"} - passes.keys()
    if missing:
        raise ValueError(f"no run of {sorted(missing)}: run them with `slice run` first.")
    first = dict(records[0]["provenance"])
    first["argv"] = [record["provenance"]["argv"] for record in records]
    raw = {name: passes[name] for name in ("ema-alternate", "plain", "smollm2")}
    return build_result(first, {name: passes[name] for name in REPORTED_ARMS}, raw)


def build_result(
    provenance: Raw, arm_passes: Mapping[str, Sequence[Raw]], raw: Raw
) -> dict[str, Any]:
    """Returns the whole result file: every summary recomputed from the passes beside it."""
    ours = [*arm_passes["ema"], *_passes_of(raw, "ema-alternate", "plain", "smollm2")]
    return {
        "provenance": dict(provenance),
        "arms": {name: _arm(arm_passes[name]) for name in REPORTED_ARMS},
        "overhead_us_per_round": overhead_us(arm_passes["ema"]),
        "switch_us": median(_switches([*arm_passes["ema"], *_passes_of(raw, "ema-alternate")]), 3),
        "captures_after_ready": sum(
            each["captures"]["after_ready"] for each in ours if ARMS[each["arm"]].is_ours
        ),
        "plain_over_none": plain_over_none(raw["plain"]),
        "smollm2": _smollm2(raw["smollm2"]),
        "raw": dict(raw),
    }


def _passes_of(raw: Raw, *names: str) -> list[Raw]:
    return [each for name in names for each in raw[name]]


def _switches(passes: Sequence[Raw]) -> list[float]:
    return [each["switch_us"] for each in passes if each.get("switch_us") is not None]


def _arm(passes: Sequence[Raw]) -> dict[str, Any]:
    return {
        "ready_s": median([each["ready_s"] for each in passes], 2),
        "tiers_s": median([each["tiers_s"] for each in passes], 2),
        "tiers_gb": median([each["tiers_gb"] for each in passes], 3),
        "tokens_per_s": {
            acceptance: {size: median(rates, 1) for size, rates in by_size.items()}
            for acceptance, by_size in rates_of(passes).items()
        },
        "raw": list(passes),
    }


def rates_of(passes: Sequence[Raw]) -> dict[str, dict[str, list[float]]]:
    """Returns tokens/s of every repeat, by acceptance and batch size."""
    rates: dict[str, dict[str, list[float]]] = {}
    for each in passes:
        for cell in each["cells"]:
            by_size = rates.setdefault(cell["acceptance"], {})
            by_size.setdefault(str(cell["batch_size"]), []).extend(
                repeat["num_tokens"] / repeat["seconds"] for repeat in cell["repeats"]
            )
    return rates


def repeats_of(passes: Sequence[Raw], acceptance: str, batch_size: str) -> list[Raw]:
    """Returns every repeat of one cell."""
    return [
        repeat
        for each in passes
        for cell in each["cells"]
        if (cell["acceptance"], str(cell["batch_size"])) == (acceptance, batch_size)
        for repeat in cell["repeats"]
    ]


def rounds_of(passes: Sequence[Raw], acceptance: str, batch_size: str) -> dict[str, int]:
    """Returns the measured rounds per tier of one cell."""
    total: Counter[str] = Counter()
    for repeat in repeats_of(passes, acceptance, batch_size):
        total.update(repeat["rounds"])
    return dict(sorted(total.items()))


def eager_rounds(passes: Sequence[Raw], acceptance: str, batch_size: str) -> int:
    """Returns the measured rounds of one cell that replayed no graph."""
    repeats = repeats_of(passes, acceptance, batch_size)
    return sum(repeat["num_eager_rounds"] for repeat in repeats)


def overhead_us(passes: Sequence[Raw]) -> dict[str, float]:
    """Returns CPU time of choose + activate + observe per round, by batch size."""
    by_size: dict[str, list[float]] = {}
    for each in passes:
        for cell in each["cells"]:
            took = cell.get("took_us")
            if took:
                total = sum(stage["mean_us"] for stage in took.values())
                by_size.setdefault(str(cell["batch_size"]), []).append(total)
    return {size: median(values, 2) for size, values in by_size.items()}


def plain_over_none(passes: Sequence[Raw]) -> dict[str, float]:
    """Returns throughput at zero steps over no speculation, by batch size."""
    plain = rates_of([each for each in passes if each["arm"] == "plain"])
    none = rates_of([each for each in passes if each["arm"] == "none"])
    return {
        size: round(statistics.median(rates) / statistics.median(none["natural"][size]), 4)
        for size, rates in plain.get("natural", {}).items()
    }


def _smollm2(passes: Sequence[Raw]) -> dict[str, dict[str, dict[str, float]]]:
    arms: dict[str, dict[str, list[Raw]]] = {}
    for each in passes:
        for phase, repeats in each["phases"].items():
            arms.setdefault(each["arm"], {}).setdefault(phase, []).extend(repeats)
    return {
        arm: {
            phase: {
                "tokens_per_s": median([r["num_tokens"] / r["seconds"] for r in repeats], 1),
                "accept_length": round(
                    sum(r["num_tokens"] for r in repeats) / sum(r["num_rounds"] for r in repeats), 3
                ),
            }
            for phase, repeats in phases.items()
        }
        for arm, phases in arms.items()
    }
