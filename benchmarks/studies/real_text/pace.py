"""What rounds of a pass took, by depth: settled, about a prefill, after another depth.

A round takes the time from the result before to its own. Where an arm changes its depth, the rounds
after tell what the change cost: CPU and GPU find their pace again, and a draft is caught up. Under
the overlap schedule a prefill is launched before the result of the round before it is read, so that
round holds the launch: 8 to 10 ms on an H200's host, which once passed for the cost of a move.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.lab.load import Round, decodes_of, steps_of
from sglang_adaptive_spec.policy.costs.corrections import SETTLING_ROUNDS

MS_DIGITS = 3


def paces(rounds: Sequence[Round]) -> dict[str, dict[str, list[float]]]:
    """Returns rounds, their decodes, the sum of their ms and the median ms of a decode.

    They stand by steps, then by what came before a round, or behind it: ``prefill``, ``move``
    (another depth) or ``settled``.
    """
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    since_prefill = since_move = 0
    for before, each, following in zip(rounds, rounds[1:], (*rounds[2:], None)):  # noqa: B905
        if not each.batch_size:
            since_prefill = 0
            continue
        steps = steps_of(each)
        since_prefill += 1
        since_move = since_move + 1 if before.batch_size and steps_of(before) == steps else 0
        kind = "settled"
        if since_prefill <= SETTLING_ROUNDS or (following and not following.batch_size):
            kind = "prefill"
        elif since_move < SETTLING_ROUNDS:
            kind = "move"
        took = (decodes_of(each), (each.time_ns - before.time_ns) / 1e6)
        found.setdefault(steps, {}).setdefault(kind, []).append(took)
    return {
        steps: {kind: _summed(took) for kind, took in sorted(kinds.items())}
        for steps, kinds in sorted(found.items())
    }


def trail(rounds: Sequence[Round]) -> list[list[int]]:
    """Returns steps (-1: a prefill), batch size, us and decodes of every round but the first."""
    return [
        [
            (each.num_draft_tokens or 0) - 1 if each.batch_size else -1,
            each.batch_size,
            (each.time_ns - before.time_ns) // 1000,
            decodes_of(each) if each.batch_size else 0,
        ]
        for before, each in pairwise(rounds)
    ]


def _summed(took: Sequence[tuple[int, float]]) -> list[Any]:
    num_decodes, ms = sum(decodes for decodes, _ in took), sum(ms for _, ms in took)
    of_decode = median(ms / decodes for decodes, ms in took)
    return [len(took), num_decodes, round(ms, MS_DIGITS), round(of_decode, MS_DIGITS)]
