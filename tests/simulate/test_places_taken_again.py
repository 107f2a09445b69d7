"""A request ends, and the host runs a round before the next one is in: no reason to decide anew."""

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy.cadence import Cadence
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.simulate.command import goodput
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from tests.simulate.worlds import HostBound

GPU, HOST_MS = ExampleCosts("flashinfer"), 11.0
COST_NOISE, MEAN_TOKENS = 0.02, 100
MOST_DECISIONS = {2: 3.0, 4: 2.0, 8: 1.0}  # a request, by requests at once


class OneRoundShort(Replay):
    """Leaves a place free for a round."""

    _was_short = False

    def _admit(self) -> bool:
        is_short = 0 < self.live.size < self._workload.concurrency(self.clock)
        self._was_short = is_short and not self._was_short
        return False if self._was_short else super()._admit()


class CountingCadence(Cadence):
    """Counts decisions."""

    num_decisions = 0

    def decided(self, is_steady: bool, round_ms: float) -> None:
        self.num_decisions += 1
        super().decided(is_steady, round_ms)


@pytest.mark.parametrize("hazard", [0.2, 0.75])
@pytest.mark.parametrize("size", MOST_DECISIONS)
def test_a_request_that_follows_another_costs_few_decisions(size: int, hazard: float) -> None:
    """When every change counted: 3.3 to 4.9 decisions of 2, 2.5 to 3.9 of 4, 1.6 to 2.5 of 8."""
    phases, load = (Phase(0.0, (hazard,)),), ((0.0, size),)
    workload = SyntheticWorkload("short", 40.0, load, phases, mean_tokens=MEAN_TOKENS)
    policy = goodput(GPU, load_config(None), COST_NOISE)  # seeds: the GPU's part
    cadence = policy.cadence = CountingCadence(DEFAULTS.cadence)
    result = OneRoundShort(policy, workload, HostBound(GPU, HOST_MS)).run()
    assert cadence.num_decisions <= MOST_DECISIONS[size] * result.num_tokens / MEAN_TOKENS
