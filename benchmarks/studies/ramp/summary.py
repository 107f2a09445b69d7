"""From the requests of a ramp to the figures of ramp-h200-fa3.json.xz.

Time per output token of a request: from its first token to its last, over the tokens after the
first. Tokens/s of an arm: all output tokens over the time from the first arrival to the last token.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats.differences import Gap, differences, gaps, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, ratio_at_same_place
from benchmarks.stats.provenance import check_same_code, in_order
from benchmarks.stats.tables import table
from benchmarks.stats.windows import RATE_DIGITS

Raw = Mapping[str, Any]

ARMS = ("none", "builtin", "goodput")
REPORTED = "goodput"
LEAST = {"none": 0.98, "builtin": 1.0}  # tokens/s over theirs
MIN_PASSES = 3
BIN_S = 1.0  # of the served tokens over time
MS_DIGITS = 4


def as_pass(
    sent: Sequence[Any],
    start_ns: int,
    finished: Sequence[Sequence[Any]],
    rounds: Sequence[Any],
    is_real: bool = False,
) -> dict[str, Any]:
    """Returns a pass as it is kept: times in ms from the start, one row a request.

    ``is_real``: text, which may end before its limit.

    Raises:
        RuntimeError: A request did not finish, or not at its length.
    """
    by_id = {request_id: rest for request_id, *rest in finished}
    rows = []
    for each in sent:
        first_ns, last_ns, num_tokens = by_id.get(each.request_id, (0, 0, 0))
        if num_tokens < (1 if is_real else each.new_tokens):
            raise RuntimeError(f"{each.request_id}: {num_tokens} of {each.new_tokens} tokens.")
        times = (round((time_ns - start_ns) / 1e6, 3) for time_ns in (first_ns, last_ns))
        rows.append([round(each.at_s * 1e3, 3), *times, min(num_tokens, each.new_tokens)])
    bins: dict[int, int] = {}
    largest = 0
    for time_ns, batch_size, num_tokens, *_rest in rounds:
        moment = int((time_ns - start_ns) / 1e9 // BIN_S)
        bins[moment] = bins.get(moment, 0) + num_tokens
        largest = max(largest, batch_size)
    return {
        "requests": rows,  # arrived, first token, last token, output tokens
        "served": [bins.get(moment, 0) for moment in range(max(bins, default=-1) + 1)],
        "largest_batch": largest,
    }


def merged(records: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result of several runs of the same code on the same machine kind."""
    passes: dict[str, list[Raw]] = {}
    for record in in_order(records):
        for each in record["passes"]:
            passes.setdefault(each["arm"], []).append(each)
    return build_result(check_same_code(records), passes)


def build_result(provenance: Raw, passes: Mapping[str, Sequence[Raw]]) -> dict[str, Any]:
    """Returns the result file from the passes of every arm."""
    return {
        "provenance": dict(provenance),
        "arms": {arm: summary_of(mine) for arm, mine in passes.items()},
        "raw": {arm: list(mine) for arm, mine in passes.items()},
    }


def summary_of(passes: Sequence[Raw]) -> dict[str, float]:
    """Returns the figures of an arm: quantiles over the requests of all passes."""
    rows = [row for each in passes for row in each["requests"]]
    per_token = [(last - first) / (number - 1) for _, first, last, number in rows if number > 1]
    waits = [first - arrived for arrived, first, _, _ in rows]
    rates = [tokens_per_s(each) for each in passes]
    return {
        "ms_per_token_p50": quantile(per_token, 0.50),
        "ms_per_token_p99": quantile(per_token, 0.99),
        "ms_to_first_token_p50": quantile(waits, 0.50),
        "ms_to_first_token_p99": quantile(waits, 0.99),
        "tokens_per_s": round(statistics.fmean(rates), RATE_DIGITS),
        "num_requests": len(rows),
        "largest_batch": max(each["largest_batch"] for each in passes),
    }


def tokens_per_s(one: Raw) -> float:
    """Returns the output tokens of a pass over the time it took."""
    rows = one["requests"]
    seconds = (max(row[2] for row in rows) - min(row[0] for row in rows)) / 1e3
    return float(sum(row[3] for row in rows) / seconds)


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least ``share`` of the values do not exceed."""
    rank = max(-(-len(values) * round(share * 100) // 100), 1)
    return round(sorted(values)[rank - 1], MS_DIGITS)


def check_ramp(result: Raw, is_real: bool = False) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result.

    ``is_real``: text, whose lengths are the arms' own.
    """
    problems = keys("file", result, {"provenance", "arms", "raw"})
    if problems:
        return problems
    problems += measured_on(result["provenance"])
    problems += gaps("raw", result["raw"], set(ARMS))
    problems += [f"{arm}: no arm of the ramp" for arm in result["raw"] if arm not in ARMS]
    sent = {
        arm: [[row[0], 0 if is_real else row[3]] for each in mine for row in each["requests"]]
        for arm, mine in result["raw"].items()
    }
    problems += [
        Gap(f"{arm}: {len(mine)} of {MIN_PASSES} passes")
        for arm, mine in result["raw"].items()
        if len(mine) < MIN_PASSES
    ]
    first = next(iter(sent.values()), [])
    problems += [f"{arm}: other requests than the first arm" for arm in sent if sent[arm] != first]
    return problems + differences(result, build_result(result["provenance"], result["raw"]), "")


def figures(result: Raw) -> list[Figure]:
    """Returns the claims: tokens/s over those of another arm, pass by pass."""
    rates = {
        arm: {each["repeat"]: tokens_per_s(each) for each in passes}
        for arm, passes in result["raw"].items()
    }
    return [
        Figure(f"{REPORTED} / {arm}", ratio_at_same_place(rates[REPORTED], rates[arm]), least)
        for arm, least in LEAST.items()
        if {REPORTED, arm} <= rates.keys()
    ]


def figure_table(result: Raw) -> str:
    """Returns the claims with their verdicts, then the figures of every arm."""
    claims = table(HEADER, [each.row() for each in figures(result)])
    return f"{claims}\n{arm_table(result)}"


def arm_table(result: Raw) -> str:
    """Returns the figures of every arm."""
    rows = [
        (
            arm,
            each["tokens_per_s"],
            each["ms_per_token_p50"],
            each["ms_per_token_p99"],
            each["ms_to_first_token_p50"],
            each["ms_to_first_token_p99"],
            each["largest_batch"],
        )
        for arm, each in result["arms"].items()
    ]
    header = ("arm", "tok/s", "ms/token p50", "p99", "first token p50", "p99", "largest batch")
    return table(header, rows)


def pass_table(passes: Sequence[Raw]) -> str:
    """Returns the figures of every arm of a run."""
    by_arm: dict[str, list[Raw]] = {}
    for each in passes:
        by_arm.setdefault(each["arm"], []).append(each)
    return arm_table({"arms": {arm: summary_of(mine) for arm, mine in by_arm.items()}})
