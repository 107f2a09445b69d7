"""What runs, round by round, on golden and recorded traces, with faults, two ranks and trees.

Moves of code must leave these files as they are, byte for byte. A change that means to decide
otherwise writes them anew, in a commit of its own that says why:

    python -m tests.simulate.judge
"""

import argparse
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.simulate.workload import Workload
from sglang_adaptive_spec.tiers import DecodeBatch, Observation, Plan
from tests.simulate.driven import COST_NOISE, MAX_STEPS, Row, on_ranks, with_faults, with_trees
from tests.simulate.recording import Alternating, recorded

ROUNDS = Path(__file__).parent / "rounds"
COSTS = ExampleCosts("flashinfer")
# Recorded at these depths in turn.
RECORDED = MappingProxyType(
    {"phases-2s-16": (3,), "ramp-1-128-1": (5, 1), "mixed-32": (7, 0, 0, 0, 2)}
)


class Asked:
    """The default policy, and whether its newest choice is a probe."""

    def __init__(self) -> None:
        self.policy: GoodputPolicy = goodput(COSTS, load_config(None), COST_NOISE)
        self.probes = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def choose(self, batch: DecodeBatch) -> Plan:
        plan = self.policy.choose(batch)
        self.probes = plan.tier != self.policy.home
        return plan


class Rows:
    """Keeps every round of a replay."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.rows: list[Row] = []

    def record(self, observation: Observation, context_tokens: int, now_s: float) -> None:
        del context_tokens, now_s
        size, label = observation.batch_size, observation.tier.label
        self.rows.append((size, label, self._asked.probes))


def replayed(workload: Workload) -> list[Row]:
    """Returns the rounds of the default policy on a trace."""
    asked = Asked()
    kept = Rows(asked)
    Replay(asked, workload, COSTS, recorder=kept).run()
    return kept.rows


def on_record(name: str, steps: Sequence[int]) -> list[Row]:
    """Returns the rounds on what was recorded of a golden trace at other depths."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        trace = recorded(path, Alternating(*steps), golden_workloads()[name])
    return replayed(RecordedWorkload(trace, MAX_STEPS))


def traces() -> Mapping[str, Callable[[], list[Row]]]:
    """Returns how the rounds of every trace are made."""
    return {
        **{name: partial(replayed, trace) for name, trace in golden_workloads().items()},
        **{f"recorded-{name}": partial(on_record, name, steps) for name, steps in RECORDED.items()},
        "faults": with_faults,
        "ranks": lambda: on_ranks()[0],
        "trees": with_trees,
    }


def as_json(rows: Iterable[Row]) -> str:
    """Returns equal rounds in a row as one line with their number."""
    lines = [json.dumps([*row, len(list(same))]) for row, same in itertools.groupby(rows)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Writes all files anew."""
    argparse.ArgumentParser(description="Writes the rounds of all traces anew.").parse_args()
    logging.disable()  # one trace has planted faults
    ROUNDS.mkdir(exist_ok=True)
    for name, make in traces().items():
        (ROUNDS / f"{name}.json").write_text(as_json(make()))


if __name__ == "__main__":
    main()
