"""Replays of golden traces and of the cells of the matrix, and what is claimed of them."""

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inject.acceptance import MIXED, MIXED_PROBABILITIES
from benchmarks.lab.load import Round, timed_windows
from benchmarks.lab.visits import settle_s_of
from benchmarks.stats.differences import differences, keys
from benchmarks.stats.figures import HEADER, MET, MISSED, Figure, Ratio, exact, rank, span
from benchmarks.stats.provenance import RESULTS
from benchmarks.stats.result_file import read_result
from benchmarks.stats.tables import table
from benchmarks.stats.windows import expected_rate, rounds_of
from benchmarks.studies.matrix.flags import parser
from benchmarks.studies.matrix.tables import name_of
from benchmarks.studies.simulator.server_costs import ARM, ServerCosts
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.regret import compare
from sglang_adaptive_spec.simulate.replay import Replay, RoundCosts
from sglang_adaptive_spec.simulate.synthetic import (
    SyntheticWorkload,
    golden_workloads,
    matrix_cell,
)
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan, RoundTime, Tier

COSTS, MATRIX = "costs-h200-fa3.json.xz", "matrix-h200-fa3.json.xz"
# Relative error of the periods that the policy itself starts with; as the golden tests.
COST_NOISE = 0.02
SEEDS = (1, 2, 3, 4, 5)  # of luck, of timing noise and of the errors above
TAIL_S = 0.1  # simulated beyond the last window, so that a whole round ends it
DIGITS = 4
RATE_DIGITS = 3
LEAST_SHARE = 0.97  # of the oracle: a choice
LEAST_AT = {"phases-2s-16": 0.93}
REPORTED = "phases-0.5s-16"  # has no limit
STARTS_WITHIN = timedelta(minutes=10)  # a server measures its costs while it starts
MOST_OFF = 0.05  # of a cell's simulated rate from the measured one: a choice

Raw = Mapping[str, Any]


class Visitor:
    """A policy that serves one replay after another: its requests are new, its clock goes on."""

    def __init__(self, policy: GoodputPolicy) -> None:
        self.policy = policy
        self._first_request = 0
        self._start_s = 0.0

    @property
    def ladder(self) -> Ladder:
        """The policy's."""
        return self.policy.ladder

    @property
    def rounds_at_once(self) -> int:
        """How many rounds the policy plans together next."""
        return self.policy.rounds_at_once

    wants_found = False

    def given_found(self, batch: DecodeBatch) -> Tier:
        """Returns what the policy says."""
        return self.policy.given_found(batch)

    def count_rounds(self, num_rounds: int) -> None:
        """Counts for the policy."""
        self.policy.count_rounds(num_rounds)

    def after_results(self) -> None:
        """Lets the policy decide."""
        self.policy.after_results()

    def run_length(self, batch: DecodeBatch) -> int:
        """Returns what the policy says."""
        return self.policy.run_length(batch)

    def is_probe(self, plan: Plan) -> bool:
        """Returns what the policy says."""
        return self.policy.is_probe(plan)

    @property
    def decision(self) -> Decision | None:
        """The policy's newest."""
        return self.policy.decision

    def go_on(self, num_requests: int, duration_s: float) -> None:
        """Ends a replay of so many requests."""
        self._first_request += num_requests
        self._start_s += duration_s

    def choose(self, batch: DecodeBatch) -> Plan:
        """Returns the policy's plan."""
        return self.policy.choose(
            batch._replace(
                requests=self._renumbered(batch.requests),
                now_s=batch.now_s + self._start_s,
            )
        )

    def observe(self, observation: Observation) -> None:
        """Passes it on."""
        requests = self._renumbered(observation.requests)
        self.policy.observe(observation._replace(requests=requests))

    def observe_time(self, round_time: RoundTime) -> None:
        """Passes it on."""
        self.policy.observe_time(round_time)

    def _renumbered(self, requests: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self._first_request + request for request in requests)


class RoundLog:
    """Rounds of a replay as the measuring plugin records those of a server."""

    def __init__(self) -> None:
        self._started: list[tuple[float, Observation]] = []

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        """Takes a round; ``now_s`` is its start, and the end of the one before."""
        self._started.append((now_s, observation))

    def rounds(self) -> list[Round]:
        """Returns every round but the last, whose end is not known."""
        ends = [now_s for now_s, _ in self._started[1:]]
        return [
            Round(
                time_ns=int(end_s * 1e9),
                batch_size=one.batch_size,
                num_tokens=sum(one.num_correct_drafts) + one.batch_size,
                num_draft_tokens=one.tier.num_draft_tokens,
                has_finished=False,
                replayed_graph=True,
            )
            for end_s, (_, one) in zip(ends, self._started, strict=False)
        ]


def fresh_policy(costs: ServerCosts, seed: int) -> GoodputPolicy:
    """Returns the shipped policy as that server starts it, its own costs off by `COST_NOISE`."""
    config = load_config(None)
    config = config.on(costs.captured(config.ladder))
    policy = build_policy(config, config.initial_steps(None))
    assert isinstance(policy, GoodputPolicy)
    policy.costs = costs.table_off_by(COST_NOISE, seed)
    return policy


def replay_golden(costs: ServerCosts) -> dict[str, dict[str, Any]]:
    """Returns tokens/s of goodput and of the oracle on every golden trace, and the best tier."""
    found = {}
    for name, workload in golden_workloads().items():
        report = compare(
            workload, costs, costs.tiers, {ARM: partial(fresh_policy, costs, SEEDS[0])}
        )
        found[name] = {
            ARM: round(report.arm(ARM).tokens_per_s, RATE_DIGITS),
            "oracle": round(report.oracle_tokens_per_s, RATE_DIGITS),
            "best_static": report.best_static,
        }
    return found


def windows_of(measured: Raw) -> argparse.Namespace:
    """Returns settling, windows and prompt length of the matrix, from its commands.

    Raises:
        ValueError: Two commands differ in them.
    """
    parsed = [parser().parse_args(argv[1:]) for argv in measured["provenance"]["argv"]]
    names = ("settle_s", "settle_request_s", "window_s", "windows", "prompt_tokens")
    if len({tuple(getattr(args, name) for name in names) for args in parsed}) > 1:
        raise ValueError(f"the commands of {MATRIX} differ in one of {', '.join(names)}.")
    return parsed[0]


def visit(visitor: Visitor, cell: Raw, costs: RoundCosts, args: Any, seed: int) -> float:
    """Returns the expected tokens per second of one visit to a cell, mean over its windows."""
    size, name = cell["batch_size"], cell["acceptance"]
    hazards = MIXED_PROBABILITIES if name == MIXED else (float(name),)
    settle_s = settle_s_of(args, size)
    duration_s = settle_s + args.windows * args.window_s + TAIL_S
    workload: SyntheticWorkload = replace(
        matrix_cell(size, *hazards, duration_s=duration_s),
        prompt_tokens=args.prompt_tokens,
        seed=seed,
    )
    log = RoundLog()
    Replay(visitor, workload, costs, seed=seed, recorder=log).run()
    visitor.go_on(size, duration_s)
    windows = timed_windows(log.rounds(), size, settle_s, args.window_s, args.windows)
    return statistics.fmean(expected_rate(size, name, window._asdict()) for window in windows)


def replay_cells(measured: Raw, costs: ServerCosts) -> dict[str, list[float]]:
    """Returns the simulated rate of every cell, one per seed; a seed is a server's whole tour."""
    args = windows_of(measured)
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        visitor = Visitor(fresh_policy(costs, seed))
        for cell in measured["cells"]:
            rate = visit(visitor, cell, costs, args, seed)
            found.setdefault(name_of(cell), []).append(round(rate, RATE_DIGITS))
    return found


def build_result(origin: Raw, raw: Raw, measured: Raw, costs_from: Raw) -> dict[str, Any]:
    """Returns the result file: its figures follow from the rates beside them and the matrix."""
    cells = [cell for cell in measured["cells"] if is_known(cell, costs_from)]
    return {
        "provenance": dict(origin),
        "of_oracle": {
            name: round(one[ARM] / one["oracle"], DIGITS) for name, one in raw["golden"].items()
        },
        "agreement": {
            name_of(cell): round(
                statistics.fmean(raw["cells"][name_of(cell)]) / cell["tokens_per_s"][ARM], DIGITS
            )
            for cell in cells
        },
        "measured_error": {
            name_of(cell): {"stderr": cell["stderr"][ARM], "windows": len(cell["raw"][ARM])}
            for cell in cells
        },
        "costs_from": dict(costs_from),
        "raw": raw,
    }


def is_known(cell: Raw, costs_from: Raw) -> bool:
    """Returns whether the costs hold the times of at least half of a cell's rounds.

    They hold no packed rounds, and no depth that their server had not captured for such a batch.
    """
    rounds = rounds_of(cell["windows"][ARM])
    sizes = costs_from["measured_batch_sizes"]
    known = [steps for steps in sizes if max(sizes[steps]) >= cell["batch_size"]]
    return 2 * sum(rounds[steps] for steps in known) >= rounds.total()


def simulate(measured: Raw, folder: Path = RESULTS) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all simulated rates, and where their costs come from."""
    costs = ServerCosts(folder / COSTS)
    raw = {"golden": replay_golden(costs), "cells": replay_cells(measured, costs)}
    return raw, costs.origin


def check_simulator(result: Raw, folder: Path = RESULTS) -> list[str]:
    """Returns what is wrong with the shape or the figures; replays everything again."""
    wanted = {"provenance", "of_oracle", "agreement", "measured_error", "costs_from", "raw"}
    problems = keys("file", result, wanted)
    missing = [name for name in (COSTS, MATRIX) if not (folder / name).exists()]
    problems += [f"{name} is missing: the simulator's input" for name in missing]
    if problems:
        return problems
    measured = read_result(folder / MATRIX)
    raw, costs_from = simulate(measured, folder)
    problems += own_costs(costs_from["date"], measured["servers"])
    return problems + differences(
        result, build_result(result["provenance"], raw, measured, costs_from), ""
    )


def own_costs(date: str, servers: Sequence[Raw]) -> list[str]:
    """Returns a problem if a server of the matrix measured the costs, at its own start."""
    measured = datetime.fromisoformat(date)
    for server in servers:
        age = measured - datetime.fromisoformat(server["date"])
        if server["arm"] == ARM and timedelta(0) <= age <= STARTS_WITHIN:
            return [f"{COSTS} was measured by a server of {MATRIX}, at {date}: take another's"]
    return []


def agreement_figures(result: Raw) -> dict[str, Figure]:
    """Returns for every cell whether simulated and measured rate agree.

    The error is the measured rate's. The simulated one is a mean of tours: its own is far smaller.
    """
    found = {}
    for name, value in result["agreement"].items():
        error = result["measured_error"][name]
        is_upper = value > 1
        found[name] = Figure(
            f"simulated over measured ({name})",
            Ratio(value, error["stderr"], error["windows"] - 1),
            1 + MOST_OFF if is_upper else 1 - MOST_OFF,
            is_upper,
        )
    return found


def figure_table(result: Raw) -> str:
    """Returns every target with its verdict, and how far each cell is off."""
    regret = [
        Figure(f"{name}: goodput over the oracle", exact(share), LEAST_AT.get(name, LEAST_SHARE))
        for name, share in result["of_oracle"].items()
        if name != REPORTED
    ]
    cells = agreement_figures(result)
    worst = max(cells.values(), key=lambda one: (rank(one), abs(one.ratio.value - 1)))
    reported = f"{REPORTED}: {result['of_oracle'].get(REPORTED)} of the oracle, no limit"
    num_by_value = sum(abs(one.ratio.value - 1) <= MOST_OFF for one in cells.values())
    verdicts = Counter(one.verdict for one in cells.values())
    within = (
        f"{num_by_value} of {len(cells)} cells agree within {MOST_OFF:.0%} by value, "
        f"{verdicts[MET]} surely, {verdicts[MISSED]} surely not: the measured rate's 95 % interval"
    )
    rows = [(name, f"{one.ratio.value:.4f}", span(one.ratio)) for name, one in cells.items()]
    return "\n".join(
        (
            table(HEADER, [figure.row() for figure in (*regret, worst)]),
            reported,
            within,
            table(("cell", "simulated / measured", "95 % interval"), rows),
        )
    )
