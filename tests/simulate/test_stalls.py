"""Stalls of a replay: how many, how long, who notices."""

from itertools import groupby

import pytest

from sglang_adaptive_spec.simulate.regret import StaticPolicy
from sglang_adaptive_spec.simulate.replay import NO_TAIL, Replay
from sglang_adaptive_spec.simulate.stalls import LEAST_FACTOR, MOST_FACTOR, Stalls, Tail
from sglang_adaptive_spec.simulate.synthetic import matrix_cell
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import RoundTime, chain_tier

COSTS = ExampleCosts("flashinfer")
THREE = chain_tier(3)
NUM_DRAWS = 20_000
FIRST = 5.0


class Timed(StaticPolicy):
    """Keeps what the clock tells."""

    def __init__(self) -> None:
        super().__init__(THREE)
        self.times_ms: list[float] = []

    def observe_time(self, round_time: RoundTime) -> None:
        self.times_ms.append(round_time.ms)


def replayed(tail: Tail) -> tuple[Replay, list[float]]:
    """Returns a replay of one batch, and how many times too long each timed round was."""
    policy = Timed()
    replay = Replay(policy, matrix_cell(8, 0.7, duration_s=4.0), COSTS, tail=tail)
    replay.run()
    true_ms = COSTS.round_ms(THREE, 8, 8 * 300)
    return replay, [ms / true_ms for ms in policy.times_ms]


@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("spell_rounds", [1, 5])
@pytest.mark.parametrize("is_real", [True, False])
def test_a_share_of_rounds_or_readings_is_2_to_20_times_too_long(
    share: float, spell_rounds: int, is_real: bool
) -> None:
    stalls = Stalls(Tail(share, spell_rounds, is_real, first_factor=1.0))
    drawn = [
        stalls.of_round(THREE, 8) if is_real else stalls.of_reading() for _ in range(NUM_DRAWS)
    ]
    slow = [factor for factor in drawn if factor != 1.0]
    assert len(slow) / NUM_DRAWS == pytest.approx(share, rel=0.2)
    assert LEAST_FACTOR <= min(slow) < max(slow) <= MOST_FACTOR
    spells = [len(list(run)) for is_slow, run in groupby(drawn, lambda one: one > 1) if is_slow]
    mean = sum(spells) / len(spells)
    assert mean == pytest.approx(spell_rounds, rel=0.15)
    assert (stalls.of_reading() if is_real else stalls.of_round(THREE, 8)) == 1.0


def test_the_first_round_of_a_tier_at_a_batch_size_is_slow() -> None:
    stalls = Stalls(Tail(0.0, first_factor=FIRST))
    uses = [(THREE, 8), (THREE, 8), (THREE, 9), (chain_tier(1), 8), (THREE, 8)]
    assert [stalls.of_round(*use) for use in uses] == [FIRST, 1.0, FIRST, FIRST, 1.0]


@pytest.mark.parametrize("is_real", [True, False])
def test_stalls_are_told_and_change_neither_traffic_nor_throughput(is_real: bool) -> None:
    without, times = replayed(NO_TAIL)
    stalled, told = replayed(Tail(0.1, is_real=is_real, first_factor=1.0))
    assert max(times) < 1.2
    assert sum(one > 1.5 for one in told) == pytest.approx(0.1 * len(told), rel=0.5)
    assert stalled.result.tokens_per_s == without.result.tokens_per_s
    assert (stalled.result.stalled_s > 0) == is_real
