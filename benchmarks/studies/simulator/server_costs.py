"""The round times of one server as an input of the simulator: `costs-h200.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sglang_adaptive_spec.policy.costs.cache import CostFile
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import Tier

# A round without a graph over one with it: measured nowhere, so high that no oracle drafts there
# (3 steps more yield at most 1.4 times the tokens). Where a policy does, it is charged for it.
NO_GRAPH_FACTOR = 2.0


class KeptCosts(CostFile, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A file of a server's cost cache, and which code that server ran."""

    provenance: dict[str, Any] | None = None


class ServerCosts:
    """What one server measured at its start and learned since, as `RoundCosts`.

    Beyond the batch sizes that a tier was measured at the server captured no graph of it (10 steps:
    up to batch 8). The table alone would prolong its line and call it cheap; here it is dear.
    """

    def __init__(self, path: Path) -> None:
        stored = msgspec.json.decode(path.read_bytes(), type=KeptCosts)
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
            "gpu": stored.key["gpu"],
            # A field of its own up to format 2.
            "host_version": stored.key.get("versions", {}).get("sglang")
            or stored.key["host_version"],
            "measured_batch_sizes": {
                str(tier.num_steps): sorted({size for size, _, _ in points})
                for tier, points in zip(self.tiers, self._state["seeds"], strict=True)
            },
        }

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


def keep_costs(source: Path, target: Path, served: Path | None) -> None:
    """Copies a file of a server's cost cache; its models keep only their folders' names.

    ``served``, a run of the benchmark overhead by that server, holds what it learned later and
    which code that was: its provenance is kept beside the costs.

    Raises:
        ValueError: ``served`` is of another server.
    """
    stored = msgspec.json.decode(source.read_bytes(), type=KeptCosts)
    names = {name: Path(stored.key[name]).name for name in ("model", "draft")}
    key = stored.key | names
    kept = msgspec.to_builtins(msgspec.structs.replace(stored, key=key))
    if served is not None:
        record = json.loads(served.read_text())
        if record["costs"]["seeds"] != kept["costs"]["seeds"]:
            raise ValueError(f"{served} is of another server than {source}: their seeds differ.")
        kept["costs"], kept["provenance"] = record["costs"], record["provenance"]
    text = msgspec.json.format(msgspec.json.encode(kept), indent=0)
    target.write_bytes(text + b"\n")
