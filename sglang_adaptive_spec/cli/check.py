"""`check`: the versions and the contract; after `--` also what a launch would serve."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sglang_adaptive_spec.cli.parsing import add_json, add_verb, print_json
from sglang_adaptive_spec.contract.check import collector_off, installed_report
from sglang_adaptive_spec.contract.flashinfer import host_plans_reason
from sglang_adaptive_spec.contract.versions import SUPPORTED, versions_report

MODEL_FLAGS = ("--model-path", "--model", "--speculative-draft-model-path")
BEHIND = "a server's arguments follow `--`: check -- --model-path TARGET ..."


def add_to(verbs: Any) -> None:
    """Adds the verb."""
    verb = add_verb(
        verbs,
        "check",
        "Does it fit this SGLang? How would these arguments be served?",
        "sglang-adaptive-spec check -- --model-path TARGET \\\n"
        "    --speculative-algorithm ADAPTIVE_EAGLE --speculative-draft-model-path DRAFT",
        run,
    )
    add_json(verb)
    verb.add_argument(
        "launch", nargs=argparse.REMAINDER, metavar="-- ARGUMENT", help="as for the server"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer."""
    launch = arguments.launch[1:] if arguments.launch[:1] == ["--"] else arguments.launch
    if launch:
        _say("1 of 2: compares SGLang's source with what the plugin uses")
    result = check()
    if launch and result["ok"]:
        with collector_off():  # a third of what the imports take
            return _run_preview(launch, arguments.json)
    if arguments.json:
        print_json(result)
    else:
        print(render(result))
    return 0 if result["ok"] else 1


def _run_preview(launch: Sequence[str], as_json: bool) -> int:
    _say(
        "2 of 2: imports SGLang, which reads the arguments and the models' configs (downloads "
        "those that are not here)"
    )
    from sglang_adaptive_spec.plugin import register

    register(serves=False)
    from sglang_adaptive_spec.host.launch.preview import preview
    from sglang_adaptive_spec.host.launch.preview import render as render_preview

    try:
        answer = preview(launch)
    except RuntimeError as error:
        if "No accelerator" not in str(error):
            raise
        print(error, file=sys.stderr)
        _say(
            "this machine has no GPU, and the arguments are read as a server on it would; fix: run "
            "it where the server will run, or for a server on CPUs set SGLANG_USE_CPU_ENGINE=1."
        )
        return 1
    except (ValueError, AssertionError, OSError) as error:  # as the server would refuse them
        print(error, file=sys.stderr)
        if isinstance(error, OSError):
            _say(
                f"a model's config could not be read: {' or '.join(_models(launch))}; allowed: a "
                "local folder with config.json, or a repository that this machine can download; "
                "fix: correct the path."
            )
        return 1
    if as_json:
        print_json(answer)
    else:
        print(render_preview(answer))
    return 0


def _models(launch: Sequence[str]) -> list[str]:
    """Returns the flags of a launch that name a model, each with its value."""
    words = [part for word in launch for part in word.split("=", 1)]
    return [
        f"{flag} {value}" for flag, value in itertools.pairwise(words) if flag in MODEL_FLAGS
    ] or ["no model is named"]


def _say(what: str) -> None:
    """Says what takes seconds, beside the answer."""
    print(f"check: {what}", file=sys.stderr, flush=True)


def check() -> dict[str, Any]:
    """Returns versions, the window, and the contract's outcome."""
    report = installed_report()
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


def render(result: dict[str, Any]) -> str:
    """Returns the outcome as text, one fact a line."""
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
