"""The command line: `sglang-adaptive-spec VERB`. It parses and prints.

The work is in host/, operate/ and simulate/.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.contract.check import contract_report
from sglang_adaptive_spec.contract.flashinfer import host_plans_reason
from sglang_adaptive_spec.contract.versions import SUPPORTED, versions_report
from sglang_adaptive_spec.operate.explain.page import explain_page
from sglang_adaptive_spec.operate.explain.source import (
    EXAMPLE_BACKEND,
    Source,
    example,
    of_file,
    of_server,
)
from sglang_adaptive_spec.operate.explain.text import as_data, render
from sglang_adaptive_spec.operate.report.page import Story, report_page
from sglang_adaptive_spec.operate.report.page import render as render_report
from sglang_adaptive_spec.operate.report.story import story_of_server, story_of_trace
from sglang_adaptive_spec.operate.server import pin
from sglang_adaptive_spec.operate.watch.screen import Watched, lines, tables
from sglang_adaptive_spec.simulate.command import Question, simulate
from sglang_adaptive_spec.simulate.overrides import differing, settings_from
from sglang_adaptive_spec.simulate.regret import WorkloadReport
from sglang_adaptive_spec.simulate.true_costs import EXAMPLES

EXAMPLE_BATCH, EXAMPLE_ACCEPTANCE = 16, 0.7
TABLE_HEAD = "policy       tokens/s of oracle  switches  probing    lost  rounds by steps"


def check() -> dict[str, Any]:
    """Returns what `check` prints: versions, the window, and the contract's outcome."""
    report = contract_report()
    return {
        "ok": report.ok,
        "host_version": report.version,
        "supported": SUPPORTED,
        "in_window": report.in_window,
        "mismatches": [asdict(mismatch) for mismatch in report.mismatches],
        "message": report.message,
        "host_plans_reason": host_plans_reason(),
        "versions": versions_report(),
    }


def render_check(result: dict[str, Any]) -> str:
    """Returns the outcome of `check` as text, one fact a line."""
    width = max(map(len, result["versions"]))
    lines = [f"{name:<{width}}  {version}" for name, version in result["versions"].items()]
    window = "inside" if result["in_window"] else "outside"
    lines.append(f"{'supported':<{width}}  sglang{result['supported']} ({window})")
    lines.append(f"{'contract':<{width}}  {'ok' if result['ok'] else 'FAILED'}")
    for mismatch in result["mismatches"]:
        lines += [
            f"  {mismatch['symbol']}",
            f"    expected {mismatch['expected']}",
            f"    found    {mismatch['found']}",
            f"    used to  {mismatch['why']}",
        ]
    if result["message"]:
        lines.append(result["message"])
    if result["host_plans_reason"]:
        lines.append(f"FlashInfer's plans are left to SGLang: {result['host_plans_reason']}")
    return "\n".join(lines)


def render_simulation(
    reports: Sequence[WorkloadReport], origin: str, settings: Mapping[str, tuple[float, float]]
) -> str:
    """Returns what `simulate` found as text, one table per trace; settings with their default."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    arguments = _parser().parse_args(argv)
    verbs = {
        "check": _check,
        "explain": _explain,
        "pin": _pin,
        "report": _report,
        "simulate": _simulate,
        "watch": _watch,
    }
    try:
        return verbs[arguments.verb](arguments)
    except ValueError as error:  # names what is wrong and how to fix it
        print(error, file=sys.stderr)
        return 1


def _check(arguments: argparse.Namespace) -> int:
    result = check()
    launch = arguments.launch[1:] if arguments.launch[:1] == ["--"] else arguments.launch
    if not launch or not result["ok"]:
        print(json.dumps(result, indent=2) if arguments.json else render_check(result))
        return 0 if result["ok"] else 1
    from sglang_adaptive_spec.host.launch.preview import preview, render

    try:
        answer = preview(launch)
    except (ValueError, AssertionError, OSError) as error:  # as the server would refuse them
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2) if arguments.json else render(answer))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    source = _source(arguments)
    now = source.now
    size = arguments.batch or (now.batch_size if now else EXAMPLE_BATCH)
    acceptance = arguments.acceptance
    if acceptance is None:
        acceptance = round(now.acceptance, 2) if now else EXAMPLE_ACCEPTANCE
    data = as_data(source, size, acceptance)
    if arguments.html is not None:
        _write(arguments.html, explain_page(data, source, size, acceptance))
        print(arguments.html)
        return 0
    print(json.dumps(data, indent=2) if arguments.json else render(data, source))
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.server is not None:
        return of_server(arguments.server, arguments.context, arguments.api_key)
    costs = arguments.costs or EXAMPLE_BACKEND
    if costs in EXAMPLES:
        return example(arguments.context, costs)
    return of_file(Path(costs), arguments.context)


def _pin(arguments: argparse.Namespace) -> int:
    states = pin(arguments.server, arguments.tier, arguments.api_key, arguments.admin_api_key)
    is_free = arguments.tier == "auto"
    now = "adapts" if is_free else f"is pinned to {arguments.tier}; `auto` lets it adapt again"
    replicas = f", {len(states)} replicas" if len(states) > 1 else ""
    print(f"{arguments.server}{replicas} {now}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    story = story_of(arguments)
    if arguments.out is not None:
        _write(arguments.out, report_page(story))
    print(render_report(story))
    return 0


def story_of(arguments: argparse.Namespace) -> Story:
    """Returns what `report` tells of.

    Raises:
        ValueError: The server or the file cannot be read.
    """
    where = arguments.source
    if "://" not in where:
        return story_of_trace(Path(where), arguments.costs)
    if arguments.costs is not None:
        raise ValueError(
            "--costs goes with a trace; a server measures its own; fix: leave it out, or name a "
            "trace."
        )
    keys = (arguments.api_key, arguments.admin_api_key)
    return story_of_server(where, arguments.replica, *keys)


def _simulate(arguments: argparse.Namespace) -> int:
    question = Question(
        traces=arguments.trace,
        golden=arguments.golden,
        policies=arguments.policy,
        costs=arguments.costs,
        config=arguments.config,
        cost_noise=arguments.cost_noise,
        settings=settings_from(arguments.set),
    )
    reports, origin = simulate(question)
    settings = differing(question.settings)
    if arguments.json:
        values = {name: value for name, (value, _) in settings.items()}
        traces = [asdict(report) for report in reports]
        print(json.dumps({"costs": origin, "settings": values, "traces": traces}, indent=2))
    else:
        print(render_simulation(reports, origin, settings))
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    servers = [Watched(url, arguments.api_key) for url in arguments.server]
    try:
        if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            _draw(tables(servers, arguments.interval))
        else:
            for line in itertools.islice(lines(servers, arguments.interval), arguments.lines):
                print(line, flush=True)
    except (KeyboardInterrupt, BrokenPipeError):  # how a watch ends
        pass
    return 0


def _draw(shown: Iterator[Any]) -> None:
    from rich.live import Live

    with Live("waiting for the first second", auto_refresh=False) as live:
        for table in shown:
            live.update(table, refresh=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-adaptive-spec", description="Adaptive speculative decoding for SGLang."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "check",
        help="report versions and check every SGLang symbol that the plugin uses; after `--` a "
        "server's arguments: say how they would be served",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument(
        "launch", nargs=argparse.REMAINDER, metavar="-- ARGUMENT", help="as for the server"
    )
    _add_explain(verbs)
    _add_pin(verbs)
    _add_report(verbs)
    _add_simulate(verbs)
    _add_watch(verbs)
    return parser


def _add_watch(verbs: Any) -> None:
    verb = verbs.add_parser("watch", help="show what servers do, second by second")
    verb.add_argument("server", nargs="+", metavar="URL", help="servers of ADAPTIVE_EAGLE")
    verb.add_argument("--api-key", metavar="KEY", help="the servers'")
    verb.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="between looks [1]"
    )
    verb.add_argument(
        "--lines", type=_positive, metavar="NUMBER", help="then end; where lines are printed"
    )


def _add_pin(verbs: Any) -> None:
    verb = verbs.add_parser("pin", help="keep a server at one tier, or let it adapt again")
    verb.add_argument("server", metavar="URL", help="a server of ADAPTIVE_EAGLE")
    verb.add_argument(
        "tier", metavar="TIER|auto", help="as /server_info calls it, such as 3 or 3-4-8"
    )
    _add_keys(verb)


def _add_report(verbs: Any) -> None:
    verb = verbs.add_parser("report", help="say what happened on a server, and what to do")
    verb.add_argument(
        "source", metavar="FILE|URL", help="a recorded trace, or a server: its minutes of a day"
    )
    verb.add_argument("--out", type=Path, metavar="FILE", help="write a page")
    verb.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="cost cache of the server that recorded the trace; default: an H200 as an example",
    )
    verb.add_argument(
        "--replica", type=int, default=0, metavar="NUMBER", help="of the server, from 0 [0]"
    )
    _add_keys(verb)


def _add_keys(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--api-key", metavar="KEY", help="the server's")
    verb.add_argument("--admin-api-key", metavar="KEY", help="the server's, if it has one")


def _add_explain(verbs: Any) -> None:
    verb = verbs.add_parser(
        "explain", help="say which tier pays for a batch and an acceptance, and from which on any"
    )
    where = verb.add_mutually_exclusive_group()
    where.add_argument("--server", metavar="URL", help="a server of ADAPTIVE_EAGLE")
    where.add_argument(
        "--costs",
        metavar="FILE",
        help=f"a cost cache, or an H200's: {', '.join(EXAMPLES)} [{EXAMPLE_BACKEND}]",
    )
    verb.add_argument("--api-key", metavar="KEY", help="the server's")
    verb.add_argument(
        "--context", type=_positive, metavar="TOKENS", help="of a request; default: as it is now"
    )
    verb.add_argument("--batch", type=_positive, metavar="REQUESTS", help="of the equation")
    verb.add_argument(
        "--acceptance", type=_chance, metavar="CHANCE", help="of the equation, 0 to below 1"
    )
    shown = verb.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument("--html", type=Path, metavar="FILE", help="write a page with sliders")


def _write(path: Path, text: str) -> None:
    """Writes a page.

    Raises:
        ValueError: It cannot be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}); allowed: a file in a folder that may be "
            "written; fix: name another."
        ) from error


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def _number(what: str, is_allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Returns the type of an argument that is ``what``."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_allowed(value := float(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text} is no {what}")

    return read


_seconds = _number("number of seconds from 0.1 to 3600", lambda value: 0.1 <= value <= 3600)
_chance = _number("number from 0 to below 1, such as 0.7", lambda value: 0 <= value < 1)


def _add_simulate(verbs: Any) -> None:
    verb = verbs.add_parser(
        "simulate", help="replay traffic against a cost table, for any policy, beside the oracle"
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
        "--costs", type=Path, metavar="FILE", help="a cost cache; default: an H200 as an example"
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
    verb.add_argument("--json", action="store_true", help="print JSON")
