"""`simulate`: what another policy would have served of the same traffic."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from sglang_adaptive_spec.cli.parsing import add_json, add_verb, print_json
from sglang_adaptive_spec.simulate.command import (
    Draws,
    Question,
    checked_draws,
    in_draws,
    simulate,
)
from sglang_adaptive_spec.simulate.overrides import differing, settings_from
from sglang_adaptive_spec.simulate.regret import WorkloadReport
from sglang_adaptive_spec.simulate.true_costs import DEFAULT_EXAMPLE, EXAMPLES

TABLE_HEAD = "policy       tokens/s of oracle  switches  probing    lost  rounds by steps"


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "simulate",
        "What would another policy or setting have served?",
        "sglang-adaptive-spec simulate --trace trace.jsonl --policy goodput --policy static-3",
        run,
    )
    verb.add_argument(
        "--trace", type=Path, action="append", default=[], metavar="FILE", help="a recorded trace"
    )
    verb.add_argument(
        "--golden", action="append", default=[], metavar="NAME", help="a golden trace, or `all`"
    )
    verb.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="goodput, ema or static-N; repeatable; default: goodput and ema",
    )
    verb.add_argument(
        "--costs",
        metavar="FILE",
        help=f"a cost cache, or an H200's: {', '.join(EXAMPLES)} [{DEFAULT_EXAMPLE}]",
    )
    verb.add_argument(
        "--cost-noise",
        type=float,
        default=0.02,
        metavar="SHARE",
        help="relative error of the cost table that goodput starts with; default: %(default)s",
    )
    verb.add_argument(
        "--config",
        metavar="FILE",
        help="an adaptive_spec.json or preset: candidate steps, and what ema needs",
    )
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="GROUP.NAME=VALUE",
        help="a setting of goodput, such as acceptance.slow_memory=500; repeatable",
    )
    verb.add_argument(
        "--draws",
        type=int,
        metavar="N",
        help="draws of the cost noise: what goodput serves in each, with --set over the defaults",
    )
    add_json(verb)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table per trace."""
    question = Question(
        traces=arguments.trace,
        golden=arguments.golden,
        policies=arguments.policy,
        costs=arguments.costs,
        config=arguments.config,
        cost_noise=arguments.cost_noise,
        settings=settings_from(arguments.set),
    )
    settings = differing(question.settings)
    num_draws = checked_draws(arguments.draws, bool(settings))
    reports, origin = simulate(question)
    draws = in_draws(question, num_draws) if num_draws else []
    if arguments.json:
        changed = {name: value for name, (value, _) in settings.items()}
        traces = [asdict(report) for report in reports]
        values = {each.workload: each.values for each in draws}
        over, rates = (values, {}) if settings else ({}, values)
        answer = {"costs": origin, "settings": changed, "traces": traces}
        print_json({**answer, "over_default": over, "draws": rates})
    else:
        print(render(reports, origin, settings))
        if draws:
            print(render_draws(draws, bool(settings)))
    return 0


def render_draws(draws: Sequence[Draws], is_ratio: bool) -> str:
    """Returns what goodput serves by draw, as text: tokens/s, or over the default settings."""
    of_what = "over the default settings" if is_ratio else "goodput, tokens/s"
    lines = ["", f"{of_what}, draws of the cost noise: {len(draws[0].values)}"]
    digits = 4 if is_ratio else 1
    for each in draws:
        least, most = min(each.values), max(each.values)
        lines.append(
            f"{each.workload:<18} {each.mean:.{digits}f}  ({least:.{digits}f} to {most:.{digits}f})"
        )
    mean = f"geometric mean {geometric_mean([each.mean for each in draws]):.{digits}f}"
    if is_ratio:
        lowest = min(draws, key=lambda each: each.mean)
        mean += f", lowest {lowest.mean:.4f} ({lowest.workload})"
    return "\n".join([*lines, mean])


def render(
    reports: Sequence[WorkloadReport], origin: str, settings: Mapping[str, tuple[float, float]]
) -> str:
    """Returns what was found as text, one table per trace; settings with their default."""
    lines = [f"costs: {origin}"]
    for name, (value, default) in settings.items():
        lines.append(f"setting: {name} is {value:g}, by default {default:g}")
    for report in reports:
        lines += ["", f"{report.workload}: best static tier {report.best_static}", TABLE_HEAD]
        for arm in report.arms:
            probing, lost = "-", "-"
            if arm.probing is not None:
                probing = f"{arm.probing.time_share:.3f}"
                lost = f"{arm.probing.loss_share:.4f}"
            rounds = " ".join(f"{steps}:{count}" for steps, count in arm.rounds_by_steps.items())
            lines.append(
                f"{arm.name:<10} {arm.tokens_per_s:>10.1f} {arm.share_of_oracle:>9.3f} "
                f"{arm.num_switches:>9} {probing:>8} {lost:>7}  {rounds}"
            )
    return "\n".join(lines)
