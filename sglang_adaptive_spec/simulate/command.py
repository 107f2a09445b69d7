"""What `sglang-adaptive-spec simulate` does: from names and files to reports."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sglang_adaptive_spec.config import load_config
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.tiers import chain_tier
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.regret import WorkloadReport, compare
from sglang_adaptive_spec.simulate.replay import Chooser
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.trace import read_trace
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.simulate.workload import Workload

STEPS = (0, 1, 2, 3, 5, 7, 10)  # replayed as static tiers, and what the oracle may choose from
DEFAULT_POLICIES = ("ema",)
EMA_PRESET = "host-default"
ALL = "all"
STATIC = re.compile(r"static-(\d{1,2})")


class SimulateError(ValueError):
    """A name that is none: one sentence with what was got, what is allowed, a fix."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    traces: Sequence[Path] = ()
    golden: Sequence[str] = ()
    policies: Sequence[str] = ()
    costs: Path | None = None
    config: str | None = None


def simulate(request: Request) -> tuple[list[WorkloadReport], str]:
    """Returns a report per trace, and where the costs come from.

    Raises:
        ValueError: A file or name is wrong; the message says which.
    """
    costs = ExampleCosts()
    names = dict.fromkeys(request.policies or DEFAULT_POLICIES)
    statics = {int(found[1]) for name in names if (found := STATIC.fullmatch(name))}
    policies = {name: _maker(name, request) for name in names if not STATIC.fullmatch(name)}
    tiers = tuple(map(chain_tier, sorted(statics.union(STEPS))))
    workloads = _workloads(request, tiers[-1].num_steps)
    return [compare(workload, costs, tiers, policies) for workload in workloads], costs.origin


def _maker(name: str, request: Request) -> Callable[[], Chooser]:
    if name == "ema":
        config = load_config(request.config or EMA_PRESET)
        return partial(EmaPolicy, config, config.initial_steps(None))
    raise SimulateError(
        f"there is no policy {name!r}; allowed: ema, static-N; fix: name one of them."
    )


def _workloads(request: Request, max_steps: int) -> list[Workload]:
    golden = golden_workloads()
    names = request.golden or ([] if request.traces else [ALL])
    if ALL in names:
        names = list(golden)
    unknown = [name for name in names if name not in golden]
    if unknown:
        raise SimulateError(
            f"there is no golden trace {unknown[0]!r}; allowed: {', '.join(golden)}, {ALL}; "
            "fix: name one of them, or a file with --trace."
        )
    workloads: list[Workload] = [
        RecordedWorkload(read_trace(path), max_steps) for path in request.traces
    ]
    return [*workloads, *(replace(golden[name], max_steps=max_steps) for name in names)]
