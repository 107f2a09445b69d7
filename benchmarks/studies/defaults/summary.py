"""From passes and starts to the figures of defaults-h200.json.xz, and what is claimed of them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.lab.load import Round
from benchmarks.lab.models import CONTEXT_LENGTH
from benchmarks.stats.differences import differences, keys, measured_on
from benchmarks.stats.figures import HEADER, Figure, Ratio, ratio_of_pairs
from benchmarks.stats.tables import table
from benchmarks.studies.ramp.summary import quantile, tokens_per_s

Raw = Mapping[str, Any]

COMPARED = ("none", "ours")  # pass by pass
PEAKS, CHANCES = (40, 120), (0.3, 0.7)
LOADS = tuple(itertools.product(PEAKS, CHANCES))
# Limits by peak: tokens/s over none's, at least; the first token's median over so many times
# none's and one of its rounds, at most; the time per token over none's, at most.
LEAST_TOKENS = {40: 0.99, 120: 0.98}
MOST_FIRST = 1.5
MOST_PER_TOKEN = {40: 1.0}
MIN_PASSES = 3
# Seconds and GB from the attention backends to the last graph, without the graphs of prefills.
RUNNING = ("max_total_tokens", "max_running_requests")  # the second follows from the first
START_FIGURES = ("arm", *RUNNING, "ready_s", "tiers_s", "tiers_gb")
LEAST_GRAPHS = 256  # requests that decode with graphs
FIGURES = {"tokens_per_s", "first_token_ms_p50", "first_token_ms_p99", "ms_per_token_p50"}
PASS_KEYS = {"arm", "peak", "acceptance", "repeat", "largest_batch", "requests", "spent", *FIGURES}
DEFAULT_ARMS = ("none", "builtin", "ours")


def with_figures(one: Raw) -> dict[str, Any]:
    """Returns a pass with its figures computed from its requests."""
    rows = one["requests"]
    waits = [first - arrived for arrived, first, _, _ in rows]
    per_token = [(last - first) / (number - 1) for _, first, last, number in rows]
    return {
        **{key: value for key, value in one.items() if key != "served"},
        "tokens_per_s": round(tokens_per_s(one), 1),
        "first_token_ms_p50": quantile(waits, 0.50),
        "first_token_ms_p99": quantile(waits, 0.99),
        "ms_per_token_p50": quantile(per_token, 0.50),
    }


def time_spent(rounds: Sequence[Sequence[Any]]) -> dict[str, list[float]]:
    """Returns by kind of batch how many there were and how many ms they took, one after the other.

    A kind is a prefill, or a decode by its drafts per request and with a graph or without. Beside
    these a pass has what its scheduler took on the CPU (measure_plugin.py:Phases).
    """
    found: dict[str, list[float]] = {}
    for before, now in itertools.pairwise(Round(*fields) for fields in rounds):
        num_drafts, means = (now.num_draft_tokens or 1) - 1, ("eager", "graph")[now.replayed_graph]
        kind = f"{num_drafts} drafts, {means}" if now.batch_size else "prefill"
        spent = found.setdefault(kind, [0, 0.0])
        spent[0] += 1
        spent[1] = round(spent[1] + (now.time_ns - before.time_ns) / 1e6, 3)
    return found


def build_result(origin: Raw, starts: Sequence[Raw], passes: Sequence[Raw]) -> dict[str, Any]:
    """Returns the result file."""
    ordered = sorted(with_partner(passes), key=lambda each: (*load_of(each), place_of(each)))
    return {
        "provenance": dict(origin),
        "starts": [as_start(each) for each in sorted(starts, key=place_of)],
        "passes": [with_figures(each) for each in ordered],
    }


def with_partner(passes: Sequence[Raw]) -> list[Raw]:
    """Returns the passes without those that one of the compared arms did not come to serve."""
    served = {(each["arm"], *load_of(each)) for each in passes}
    return [each for each in passes if all((arm, *load_of(each)) in served for arm in COMPARED)]


def load_of(one: Raw) -> tuple[Any, ...]:
    """Returns what a pass was sent: peak, acceptance, and which arrivals."""
    return one["peak"], one["acceptance"], one["repeat"]


def place_of(one: Raw) -> int:
    """Returns where the arm of a pass or start comes; an earlier commit's last."""
    names = (*DEFAULT_ARMS, one["arm"])
    return names.index(one["arm"])


def as_start(measured: Raw) -> dict[str, Any]:
    """Returns what is kept of a server's start; tiers are SGLang's own in other arms than ours."""
    plugin = measured["plugin"] or {}
    return {
        **{name: measured[name] for name in START_FIGURES},
        "tiers": plugin.get("tiers", []),
        "skipped_tiers": plugin.get("skipped_tiers", {}),
    }


def figures(result: Raw) -> list[Figure]:
    """Returns what is claimed of every load."""
    found = []
    for peak, chance in LOADS:
        by_arm = {
            arm: [
                each
                for each in result["passes"]
                if (each["arm"], each["peak"], each["acceptance"]) == (arm, peak, chance)
            ]
            for arm in COMPARED
        }
        if by_arm["ours"] and len(by_arm["ours"]) == len(by_arm["none"]):
            found += figures_of_load(f"to {peak} a second at {chance}", peak, **by_arm)
    return found


def figures_of_load(load: str, peak: int, ours: Sequence[Raw], none: Sequence[Raw]) -> list[Figure]:
    """Returns the claims of one load; a round of none's is its median time per token."""

    def over_none(name: str) -> Ratio:
        return ratio_of_pairs(*([each[name] for each in arm] for arm in (ours, none)))

    most = [MOST_FIRST * each["first_token_ms_p50"] + each["ms_per_token_p50"] for each in none]
    first = ratio_of_pairs([each["first_token_ms_p50"] for each in ours], most)
    name = f"{load}: first token over {MOST_FIRST:g} x none's and a round"
    least, per_token = LEAST_TOKENS[peak], MOST_PER_TOKEN.get(peak)
    return [
        Figure(f"{load}: tokens/s over none's", over_none("tokens_per_s"), least),
        Figure(name, first, 1.0, is_upper=True),
        *(
            [Figure(f"{load}: time per token", over_none("ms_per_token_p50"), per_token, True)]
            if per_token is not None
            else []
        ),
    ]


def check_defaults(result: Raw) -> list[str]:
    """Returns what is wrong with the shape or the figures of the result."""
    return check_starts(result) or check_passes(result)


def check_passes(result: Raw) -> list[str]:
    """Returns what is wrong with the passes: their number, their arrivals, their figures."""
    problems = measured_on(result["provenance"])
    sent: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, each in enumerate(result["passes"]):
        problems += keys(f"passes.{number}", each, PASS_KEYS)
        if not problems:
            which = load_of(each)
            of_load = sent.setdefault(which, {})
            if each["arm"] in of_load or which[:2] not in LOADS:
                problems.append(f"passes.{number}: one too many of {each['arm']}, {which}")
            of_load[each["arm"]] = [[row[0], row[3]] for row in each["requests"]]
    if problems:
        return problems
    for load, by_arm in sent.items():
        problems += [f"{load}: no pass of {arm}" for arm in set(COMPARED) - by_arm.keys()]
        if len({str(requests) for requests in by_arm.values()}) > 1:
            problems.append(f"{load}: the arms got other requests")
    for load, arm in itertools.product(LOADS, DEFAULT_ARMS):
        num = sum(key[:2] == load and arm in by_arm for key, by_arm in sent.items())
        if num < MIN_PASSES:
            problems.append(f"{load}: {num} passes of {arm}, at least {MIN_PASSES} are needed")
    rebuilt = build_result(result["provenance"], (), result["passes"])["passes"]
    return problems + differences(result["passes"], rebuilt, "passes")


def check_starts(result: Raw) -> list[str]:
    """Returns what is wrong with the starts: every tier, enough graphs, the cap of none."""
    problems = keys("file", result, {"provenance", "starts", "passes"})
    if problems:
        return problems
    for number, each in enumerate(result["starts"]):
        where = f"starts.{number}"
        problems += keys(where, each, {*START_FIGURES, "tiers", "skipped_tiers"})
        if problems:
            return problems
        wanted = cap_without_speculation(each["max_total_tokens"])
        if each["arm"] in COMPARED and each["max_running_requests"] != wanted:
            problems.append(
                f"{where}: {each['max_running_requests']} running requests, "
                f"without speculation its KV pool lets {wanted} run"
            )
        if each["arm"] == "ours":
            sizes = [size for tier in each["tiers"] for size in tier["graph_batch_sizes"]]
            problems += [f"{where}: no tier {tier}" for tier in each["skipped_tiers"]]
            if max(sizes, default=0) < LEAST_GRAPHS:
                problems.append(f"{where}: graphs up to {max(sizes, default=0)} requests")
    graphs = {each["arm"]: graphs_of(each) for each in result["starts"] if each["tiers"]}
    problems += [
        f"{arm}: other graphs than ours: {there}"
        for arm, there in graphs.items()
        if there != graphs.get("ours")
    ]
    absent = set(COMPARED) - {each["arm"] for each in result["starts"]}
    return problems + [f"starts: none of {arm}" for arm in sorted(absent)]


def graphs_of(start: Raw) -> list[tuple[Any, ...]]:
    """Returns the shape of every tier with the batch sizes that decode with its graphs."""
    return [
        (*(tier.get(name) for name in ("num_steps", "topk")), tuple(tier["graph_batch_sizes"]))
        for tier in start["tiers"]
    ]


def cap_without_speculation(pool_tokens: int) -> int:
    """Returns the running requests that SGLang grants a KV pool if no user names them.

    A draft takes of the pool, so the arms' caps differ by as much (sglang 0.5.21
    mem_cache/kv_cache_configurator.py:resolve_max_num_reqs).
    """
    estimated = int(pool_tokens / CONTEXT_LENGTH * 512)
    return min(max(min(estimated, 4096), 2048), pool_tokens // 2)


def pass_table(passes: Sequence[Raw]) -> str:
    """Returns the figures of every pass."""
    shown = ("arm", "peak", "acceptance", "repeat", *sorted(FIGURES), "largest_batch")
    return table(shown, [[each[name] for name in shown] for each in passes])


def start_table(result: Raw) -> str:
    """Returns the figures of every start."""
    rows = [
        [*(each[name] for name in START_FIGURES), len(each["tiers"])] for each in result["starts"]
    ]
    return table((*START_FIGURES, "tiers"), rows)


def figure_table(result: Raw) -> str:
    """Returns every claim with its verdict, and the starts and passes behind it."""
    claims = table(HEADER, [each.row() for each in figures(result)])
    return "\n".join((claims, start_table(result), pass_table(result["passes"])))
