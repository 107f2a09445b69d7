"""What tests record: a workload under a policy that no server would have."""

from pathlib import Path

from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.policy.protocol import Choices, SimplePolicy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import SyntheticWorkload
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, chain_tier
from sglang_adaptive_spec.trace.format import Trace, read_trace
from sglang_adaptive_spec.trace.record import TraceRecorder


class Alternating(SimplePolicy):
    """Another tier every round, from the second on, so that every depth is censored somewhere."""

    def __init__(self, *steps: int) -> None:
        self.tiers = tuple(map(chain_tier, steps))
        self.ladder = Ladder({1: self.tiers})
        self.num_rounds = 0

    def choose(self, batch: DecodeBatch) -> Plan:
        self.num_rounds += 1
        return Plan(self.tiers[self.num_rounds % len(self.tiers)])


def recorded(path: Path, policy: Choices, workload: SyntheticWorkload) -> Trace:
    """Returns what is recorded of a workload under ``policy``, read back from ``path``."""
    recorder = TraceRecorder(path, name=workload.name, max_steps=10)
    Replay(policy, workload, ExampleCosts("flashinfer"), recorder=recorder).run()
    recorder.close()
    return read_trace(path)
