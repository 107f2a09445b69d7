"""What is tuned: rounds of a server or a trace, round times, and what tiers took to build."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.config.schema import AdaptiveConfig, load_config
from sglang_adaptive_spec.operate.server import ServerError, adaptive_states, minutes, require
from sglang_adaptive_spec.operate.tune.blocks import Candidate
from sglang_adaptive_spec.operate.tune.costs import ExtendedCosts
from sglang_adaptive_spec.operate.tune.minutes import MOST_ROUNDS, trace_of_minutes
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.replay import RoundCosts
from sglang_adaptive_spec.simulate.true_costs import (
    DEFAULT_EXAMPLE,
    EXAMPLES,
    ExampleCosts,
    read_table,
)
from sglang_adaptive_spec.tiers import PLAIN_TIER
from sglang_adaptive_spec.trace.format import Trace, read_trace

LEAST_ROUNDS = 400  # about seventeen a block
NEEDED = ("cost_table", "costs", "tiers", "base")  # of a server's state
DEFAULT_OF = {"NGRAM": "ngram"}  # presets that serve by default, by base


class SourceError(ValueError):
    """What cannot be tuned: what was got, what is allowed, a fix."""


@dataclass(frozen=True)
class Source:
    """What is tuned, and where it comes from."""

    trace: Trace
    costs: RoundCosts
    measured: tuple[int, ...]  # steps whose round times are known
    default: AdaptiveConfig
    rounds_of: str  # in words
    costs_of: str
    built: Mapping[int, tuple[float, float]]  # GB and seconds, by steps; empty where nobody knows

    @property
    def start(self) -> Candidate:
        """The default, without tiers that have no round times."""
        ladder = self.default.ladder
        missing = [tier for tier in ladder.tiers if tier.num_steps not in self.measured]
        if len(missing) == len(ladder.tiers):
            raise SourceError(
                f"{self.costs_of} has the round times of {_list(self.measured)} steps, and the "
                f"default has none of them; allowed: {_list(self.default.candidate_steps)}; fix: "
                "name other costs."
            )
        kept = ladder.without(missing).ranges
        return Candidate(
            tuple((bound, tuple(t.num_steps for t in tiers)) for bound, tiers in kept.items())
        )


def of_files(trace: Path, costs: str | None, most_rounds: int | None = None) -> Source:
    """Returns a recorded trace, with the round times of a cost cache or of the example.

    Raises:
        ValueError: A file cannot be read, or says too little.
    """
    read = _newest(read_trace(trace), trace, most_rounds)
    default = load_config(DEFAULT_OF["NGRAM"] if _has_table(read) else None)
    name = costs or DEFAULT_EXAMPLE
    if name in EXAMPLES:
        example = ExampleCosts(name)
        steps = default.candidate_steps
        return Source(read, example, steps, default, f"{trace}", example.origin, {})
    table = read_table(Path(name))
    return Source(read, ExtendedCosts(table), _measured(table, name), default, f"{trace}", name, {})


def of_server(
    url: str,
    trace: Path | None,
    keys: tuple[str | None, str | None],
    replica: int = 0,
    most_rounds: int | None = None,
) -> Source:
    """Returns a server's own round times, with a trace of its rounds or else its minutes.

    Raises:
        ValueError: The server or the trace cannot be read, or says too little.
    """
    states = adaptive_states(url, keys[0])
    if not 0 <= replica < len(states):
        raise ServerError(
            f"{url} has no replica {replica}; allowed: 0 to {len(states) - 1}; fix: name one."
        )
    require(url, states, NEEDED)
    state = states[replica]
    if state["cost_table"] is None:
        raise ServerError(
            f"{url} serves with policy {state.get('policy')}, which measures no round times; "
            "allowed: policy goodput; fix: tune a server without a config."
        )
    table = CostTable.from_dict(state["cost_table"])
    table.forget_drift()
    if trace is None and state["base"] == "NGRAM":
        raise ServerError(
            f"{url} drafts from a table, and minutes do not say what it had; allowed: a trace of "
            "such a server; fix: set `record`, serve, and name the file with --trace."
        )
    if trace is not None:
        read, rounds_of = _newest(read_trace(trace), trace, most_rounds), str(trace)
    else:
        rows = minutes(url, most=24 * 60, api_key=keys[0], admin_key=keys[1])[replica]
        context = state["costs"]["context_tokens"] // max(state["costs"]["batch_size"], 1)
        read = trace_of_minutes(rows, url, context, most_rounds or MOST_ROUNDS)
        rounds_of = f"{len(rows)} minutes of {url}"
    _check_length(read, rounds_of)
    default = load_config(DEFAULT_OF.get(state["base"]))
    return Source(
        *(read, ExtendedCosts(table), _measured(table, url), default, rounds_of),
        costs_of=f"measured by {url}",
        built={tier["num_steps"]: (tier["build_gb"], tier["build_s"]) for tier in state["tiers"]},
    )


def _newest(trace: Trace, path: Path, most_rounds: int | None) -> Trace:
    """Returns the newest rounds of a trace."""
    _check_length(trace, str(path))
    return Trace(trace.header, trace.rounds[-(most_rounds or MOST_ROUNDS) :])


def _check_length(trace: Trace, name: str) -> None:
    if len(trace.rounds) < LEAST_ROUNDS:
        raise SourceError(
            f"{name} has {len(trace.rounds)} rounds, too few to choose on one half and to judge on "
            f"the other; allowed: {LEAST_ROUNDS} or more; fix: let the server serve for longer."
        )


def _measured(table: CostTable, name: str) -> tuple[int, ...]:
    chains = sorted(tier.num_steps for tier in table.tiers if tier.topk == 1)
    if PLAIN_TIER not in table.tiers or len(chains) < 3:
        raise SourceError(
            f"{name} has the round times of {_list(chains)} steps; allowed: those of zero steps "
            "and of two depths or more; fix: serve with the default config."
        )
    return tuple(chains)


def _has_table(trace: Trace) -> bool:
    return any(one.found is not None for one in trace.rounds)


def _list(steps: Any) -> str:
    return ", ".join(map(str, steps))
