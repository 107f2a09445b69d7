"""What the best tier would have served, looking back.

Of a trace it is computed: the same requests with the same luck, replayed at one tier throughout and
by an oracle, beside what ran, all at the same round times. Of minutes it is an estimate: the tier
that gave most tokens per ms in the same range of batch sizes, whatever the text was then.
"""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from sglang_adaptive_spec.operate.spans import Span
from sglang_adaptive_spec.simulate.command import STEPS
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.regret import compare
from sglang_adaptive_spec.simulate.replay import RoundCosts
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, read_table
from sglang_adaptive_spec.tiers import chain_tier
from sglang_adaptive_spec.trace.format import Trace

LEAST_ROUNDS = 50  # timed, of a tier in a range of batch sizes, to know its rate


class HindsightError(ValueError):
    """Costs that do not fit a trace: what was got, what is allowed, a fix."""


class Hindsight(NamedTuple):
    """Tokens/s of what ran and of what could have."""

    served: float
    best_name: str  # the best tier, alone; of minutes: of each range of batch sizes
    best: float
    oracle: float | None  # None of an estimate
    origin: str  # of the round times

    @property
    def regret(self) -> float:
        """Share of the better one's tokens/s that was not served; negative if more was."""
        return 1 - self.served / max(self.best, self.oracle or 0.0)


def of_trace(trace: Trace, costs: Path | None) -> Hindsight | None:
    """Returns the regret of a trace; None where rounds were packed, whose times no table has.

    Raises:
        ValueError: The file has no costs, or not those of a tier that ran.
    """
    if any(one.is_packed for one in trace.rounds):
        return None
    ran = sorted({one.num_steps for one in trace.rounds})
    if costs is None:
        table: RoundCosts = ExampleCosts()
        steps: tuple[int, ...] = tuple(sorted({*STEPS, *ran}))
        origin = "an H200's with an 8B model; --costs names the server's own"
    else:
        read = read_table(costs)
        table, origin = read, str(costs)
        steps = tuple(sorted(tier.num_steps for tier in read.tiers if tier.topk == 1))
        if not set(ran) <= set(steps):
            raise HindsightError(
                f"{costs} has the round times of {_list(steps)} steps, and {trace.header.name} ran "
                f"{_list(ran)}; allowed: the costs of the server that recorded it; fix: name its "
                "cost cache."
            )
    workload = RecordedWorkload(trace, steps[-1])
    report = compare(workload, table, list(map(chain_tier, steps)), {})
    tokens = sum(one.num_tokens for one in trace.rounds)
    ms = 0.0
    for one in trace.rounds:
        tier, size = chain_tier(one.num_steps), len(one.requests)
        ms += one.num_decodes * table.round_ms(tier, size, one.context_tokens)
    best = report.arm(report.best_static)
    steps_of_best = report.best_static.removeprefix("static-")
    return Hindsight(
        1e3 * tokens / ms,
        f"{steps_of_best} steps throughout",
        best.tokens_per_s,
        report.arm("oracle").tokens_per_s,
        origin,
    )


def of_minutes(whole: Span) -> Hindsight | None:
    """Returns the estimate; None where no range of batch sizes ran two tiers for long enough.

    None where rounds were packed, too: their rates are not their tier's.
    """
    if whole.packed:
        return None
    by_range: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for (_, sizes), timed in whole.loads.items():
        by_range[sizes].append(timed)
    served_tokens = served_ms = best_ms = 0.0
    is_known = False
    for of_range in by_range.values():
        tokens, ms = sum(each[2] for each in of_range), sum(each[1] for each in of_range)
        known = [each for each in of_range if each[0] >= LEAST_ROUNDS and each[1] > 0]
        if not (tokens and ms):
            continue
        is_known |= len(known) > 1
        served_tokens += tokens
        served_ms += ms
        best_ms += tokens / max([tokens / ms, *(each[2] / each[1] for each in known)])
    if not is_known:
        return None
    return Hindsight(
        1e3 * served_tokens / served_ms,
        "the tier that gave most per ms in each range of batch sizes",
        1e3 * served_tokens / best_ms,
        None,
        "measured by the server",
    )


def _list(steps: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, steps))
