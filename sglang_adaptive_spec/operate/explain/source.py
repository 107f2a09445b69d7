"""Where the round times come from: a server, a cost-cache file, or the H200 that is shipped."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.operate.explain.break_even import Explorer
from sglang_adaptive_spec.operate.server import ServerError, server_states
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.true_costs import DEFAULT_EXAMPLE, ExampleCosts, read_table
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

EXAMPLE_CONTEXT = 256  # tokens of a request
EXAMPLE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_UNSURE = 0.2  # logits: a third of what a tree of four branches is guessed to lift
LIVE_KEYS = ("cost_table", "acceptance", "slots")


@dataclass(frozen=True)
class Now:
    """Where a server is."""

    batch_size: int
    acceptance: float  # the chance of the first draft
    tier: str


@dataclass(frozen=True)
class Source:
    """Round times, the batch sizes to show, and where they are from."""

    explorer: Explorer
    batch_sizes: tuple[int, ...]
    origin: str
    now: Now | None = None


def example(context: int | None = None, backend: str = DEFAULT_EXAMPLE) -> Source:
    """Returns the shipped H200 with an attention backend, a key of `EXAMPLES`."""
    costs = ExampleCosts(backend)
    explorer = Explorer(costs, load_config(None).ladder, context or EXAMPLE_CONTEXT)
    return Source(explorer, EXAMPLE_SIZES, costs.origin)


def of_file(path: Path, context: int | None = None) -> Source:
    """Returns what a server kept of its round times.

    Raises:
        ValueError: It cannot be read, or has no zero steps, or no drafts.
    """
    table = read_table(path)
    _check(table.tiers, str(path))
    explorer = Explorer(table, _ladder(table.tiers), context or EXAMPLE_CONTEXT)
    return Source(explorer, _sizes(table), str(path))


def of_server(url: str, context: int | None = None, api_key: str | None = None) -> Source:
    """Returns what a running server measured, and where it is now.

    Raises:
        ServerError: There is no such server, or it has no round times.
    """
    return of_state(server_states(url, api_key)[0], url, context)


def of_state(state: Mapping[str, Any], url: str, context: int | None = None) -> Source:
    """Returns what an object ``adaptive_spec`` says, and where it is from.

    Raises:
        ServerError: It has no round times.
    """
    if state.get("policy") != "goodput" or any(state.get(key) is None for key in LIVE_KEYS):
        raise ServerError(
            f"{url} knows no round times (version {state.get('version')}, policy "
            f"{state.get('policy')}, mode {state.get('mode')}); allowed: an adaptive server with "
            "policy goodput of this version; fix: ask such a one, or name a file with --costs."
        )
    table = CostTable.from_dict(state["cost_table"])
    names = {tier.label: tier for tier in table.tiers}
    _check(table.tiers, url)
    ladder = Ladder(
        {
            int(bound): [names[label] for label in slot["candidate_tiers"]]
            for bound, slot in state["slots"].items()
        }
    )
    costs = state["costs"]
    size = max(costs["batch_size"], 1)
    measured = costs["context_tokens"] // size
    now = Now(size, state["acceptance"]["survival"][0], state["current_tier"])
    explorer = Explorer(
        table, ladder, context or measured or EXAMPLE_CONTEXT, lifts=_lifts(state, names)
    )
    return Source(explorer, _sizes(table), url, now)


def _check(tiers: tuple[Tier, ...], where: str) -> None:
    if PLAIN_TIER not in tiers or len([tier for tier in tiers if tier.topk == 1]) < 2:
        raise ServerError(
            f"{where} has the round times of {', '.join(tier.label for tier in tiers)} steps; "
            "allowed: those of zero steps and of a chain; fix: serve with both among "
            "candidate_steps."
        )


def _ladder(tiers: tuple[Tier, ...]) -> Ladder:
    """Returns the default's ladder of these tiers; others may serve any batch."""
    default = load_config(None).ladder
    ranges = {
        bound: [tier for tier in tiers if tier in own or tier not in default.tiers]
        for bound, own in default.ranges.items()
    }
    return Ladder({bound: kept for bound, kept in ranges.items() if kept})


def _sizes(table: CostTable) -> tuple[int, ...]:
    """Returns the batch sizes to show: doubling, up to the largest that was measured."""
    largest = max(table.measured_sizes, default=EXAMPLE_SIZES[-1])
    sizes = [size for size in EXAMPLE_SIZES if size < largest]
    return (*sizes, largest)


def _lifts(state: Mapping[str, Any], names: Mapping[str, Tier]) -> dict[Tier, list[float]]:
    """Returns what trees lift, where a server knows: one that ran no chain cannot tell them apart.

    The others keep the policy's guess.
    """
    lifts = state["acceptance"].get("tree_lifts") or {}
    return {
        names[label]: lift["logits"]
        for label, lift in lifts.items()
        if label in names and max(lift["errors"]) <= MOST_UNSURE
    }
