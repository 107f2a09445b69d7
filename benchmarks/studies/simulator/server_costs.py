"""The round times of one server as an input of the simulator: `costs-h200-fa3.json.xz`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.stats.result_file import read_content, write_content
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import Tier

# A round without a graph over one with it: measured nowhere, so high that no oracle drafts there
# (3 steps more yield at most 1.4 times the tokens). Where a policy does, it is charged for it.
NO_GRAPH_FACTOR = 2.0
ARM = "goodput"


class KeptCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server knew at the end of a run, when it started, and the run it served."""

    provenance: dict[str, Any]
    date: str
    costs: dict[str, Any]


class ServerCosts:
    """What one server measured at its start and learned since, as `RoundCosts`.

    Beyond the batch sizes that a tier was measured at the server captured no graph of it (10 steps:
    up to batch 8). The table alone would prolong its line and call it cheap; here it is dear.
    """

    def __init__(self, path: Path) -> None:
        stored = msgspec.json.decode(read_content(path), type=KeptCosts)
        self._state = stored.costs
        self._table = CostTable.from_dict(self._state)
        self.tiers = self._table.tiers
        self._largest = {
            tier: max(size for size, _, _ in points)
            for tier, points in zip(self.tiers, self._state["seeds"], strict=True)
        }
        self.origin = {
            "file": path.name,
            "date": stored.date,
            "gpu": stored.provenance["gpu"],
            "host_version": stored.provenance["host_version"],
            "measured_batch_sizes": {
                str(tier.num_steps): sorted({size for size, _, _ in points})
                for tier, points in zip(self.tiers, self._state["seeds"], strict=True)
            },
        }

    def captured(self, ladder: Ladder) -> Ladder:
        """Returns ``ladder`` with the tiers of each batch that this server captured for it.

        A batch beyond all of them keeps its own.
        """
        bounds = {*ladder.ranges, *(size + 1 for size in self._largest.values())}
        ranges = {}
        for bound in sorted(bounds):
            tiers = ladder.of(bound)
            held = [tier for tier in tiers if self._largest.get(tier, 0) >= bound]
            ranges[bound] = held or tiers
        return Ladder(ranges)

    def round_ms(self, tier: Tier, batch_size: int, context_tokens: int) -> float:
        """Returns the period."""
        if batch_size <= self._largest[tier]:
            return self._table.round_ms(tier, batch_size, context_tokens)
        captured = [one for one in self.tiers if self._largest[one] >= batch_size]
        last = captured[-1] if captured else tier
        ms = self._table.round_ms(last, batch_size, context_tokens)
        return ms * (1 + tier.num_steps) / (1 + last.num_steps) * NO_GRAPH_FACTOR

    def plain_extra_ms(self, batch_size: int, context_tokens: int) -> float:
        """Returns what a catch-up adds to a zero-step round, spread over all of them."""
        return self._table.plain_extra_ms(batch_size, context_tokens)

    def table_off_by(self, noise: float, seed: int) -> CostTable:
        """Returns a table as another start seeds it, each measurement off by a relative error."""
        luck = np.random.default_rng(seed)
        factors: dict[float, float] = {}  # sizes that pad to one graph share a measurement

        def off(points: Sequence[Any]) -> list[tuple[int, int, float]]:
            for _, _, ms in points:
                if ms not in factors:
                    factors[ms] = 1 + noise * float(luck.standard_normal())
            return [(size, context, ms * factors[ms]) for size, context, ms in points]

        table = CostTable.empty(self.tiers, self._state["buckets"])
        for tier, points in zip(self.tiers, self._state["seeds"], strict=True):
            for size, context, ms in off(points):
                table.seed(tier, size, context, ms)
        for size, context, ms in off(self._state["catch_up_seeds"]):
            table.seed(self.tiers[0], size, context, ms, is_catch_up=True)
        table.fit()
        return table


def keep_costs(run: Path, target: Path) -> None:
    """Copies the cost table of the goodput server of a run, as it was at the end of it.

    Raises:
        ValueError: No such server ran, or it told no costs.
    """
    record = json.loads(run.read_text())
    tables = [
        (server["date"], server["plugin"]["cost_table"])
        for server in record.get("servers", [])
        if server["arm"] == ARM and "cost_table" in server.get("plugin", {})
    ]
    if len(tables) != 1:
        raise ValueError(
            f"{run} has {len(tables)} servers of {ARM} with a cost table; allowed is one; fix: "
            f"give the file of one command with --arms {ARM}."
        )
    ((date, costs),) = tables
    kept = KeptCosts(record["provenance"], date, costs)
    write_content(target, msgspec.json.format(msgspec.json.encode(kept), indent=0) + b"\n")
