"""A simulated GPU whose round times are known, and tables told arbitrary rounds."""

import random

from hypothesis import strategies as st

from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, Plan, RoundTime, Tier, chain_tier

TIERS = tuple(chain_tier(steps) for steps in (0, 1, 2, 3, 5, 7))
THREE, FIVE, SEVEN = TIERS[3:]
SEEDED_SIZES = (1, 4, 16, 32, 64, 128)
NOISE = 0.01  # relative sigma of a round
CONTEXT = 1000  # tokens a request


def served(tier: Tier, is_catch_up: bool) -> Plan:
    """A round of ``tier`` that catches the draft up, or not."""
    return Plan(tier, catch_up=CatchUp.WHOLE if is_catch_up else CatchUp.NONE)


def graph_ms(tier: Tier, batch_size: int, context_tokens: int) -> float:
    """What a round of the simulated GPU takes."""
    return (5 + 0.03 * batch_size) * (1 + 0.14 * tier.num_steps) + 2e-5 * context_tokens


def seeded(tiers=TIERS, factor=lambda tier: 1.0, catch_up_ms: float = 0.0) -> CostTable:
    table = CostTable.empty(tiers)
    for tier in tiers:
        for batch_size in SEEDED_SIZES:
            for context in (batch_size * 500, batch_size * 4000):
                ms = graph_ms(tier, batch_size, context)
                table.seed(tier, batch_size, context, factor(tier) * ms)
                if catch_up_ms and tier == PLAIN_TIER:
                    table.seed(tier, batch_size, context, ms + catch_up_ms, is_catch_up=True)
    table.fit()
    return table


class Server:
    """Serves rounds and tells their noisy periods, now and then with an outlier."""

    def __init__(self, table: CostTable, off_graph_ms: float = 0.0, seed: int = 0) -> None:
        self.table = table
        self.off_graph_ms = off_graph_ms
        self.neighbour = 1.0
        self.graph_factor = 1.0  # another model's graphs
        self.factor: dict[Tier, float] = {}  # what the seed of a tier did not know
        self._random = random.Random(seed)

    def expected_ms(self, tier: Tier, batch_size: int) -> float:
        ms = self.neighbour * self.graph_factor * self.factor.get(tier, 1.0)
        ms *= graph_ms(tier, batch_size, CONTEXT * batch_size)
        return ms + self.off_graph_ms

    def run(self, tier: Tier, batch_size: int, num_rounds: int) -> None:
        for _ in range(num_rounds):
            ms = self.expected_ms(tier, batch_size) * (1 + self._random.gauss(0, NOISE))
            if self._random.random() < 0.02:
                ms += 30.0
            self.table.observe(RoundTime(Plan(tier), batch_size, CONTEXT * batch_size, ms))

    def error(self, tier: Tier, batch_size: int) -> float:
        """Returns the relative error of the table, plus if it overrates the round."""
        said = self.table.round_ms(tier, batch_size, CONTEXT * batch_size)
        return said / self.expected_ms(tier, batch_size) - 1


sizes = st.integers(1, 300)
contexts = st.integers(0, 2_000_000)
seeds_told = st.lists(
    st.tuples(
        st.sampled_from(TIERS[:3]),
        st.integers(1, 200),
        st.integers(0, 500_000),
        st.floats(0.1, 200),
        st.booleans(),
    ),
    max_size=25,
)
rounds_told = st.lists(
    st.tuples(st.sampled_from(TIERS[:3]), st.integers(1, 300), st.floats(0.01, 1e4), st.booleans()),
    max_size=150,
)


def table_of(seeds, rounds) -> CostTable:
    table = CostTable.empty(TIERS[:3], (1, 2, 4, 8, 16, 64))
    for tier, batch_size, context, ms, is_catch_up in seeds:
        table.seed(tier, batch_size, context, ms, is_catch_up=is_catch_up and tier == PLAIN_TIER)
    table.fit()
    for tier, batch_size, ms, is_catch_up in rounds:
        plan = served(tier, is_catch_up and tier == PLAIN_TIER)
        table.observe(RoundTime(plan, batch_size, 100 * batch_size, ms))
    return table
