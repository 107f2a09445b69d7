"""The minutes of a server as a trace, for a server that records none.

A minute says how many rounds every tier ran and what requests accepted in them. It does not say in
which order, or which request. So each becomes a stretch of rounds of one batch size, its mean,
whose tiers and accepted drafts are drawn as often as they occurred. Requests go on from minute to
minute. What only a trace has is lost: how requests differ, and how they come and go.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sglang_adaptive_spec.trace.format import Trace, TraceHeader, TraceRound

MOST_MINUTES = 24  # evenly spread: as many as there are blocks to tell apart
MOST_ROUNDS = 5000  # a choice: some minutes of replays
LEAST_DRAFTED = 100  # requests times rounds; below, nobody knows what drafts would give
SEED = 1

Row = Mapping[str, Any]  # loop/minutes.py


class MinutesError(ValueError):
    """Minutes that say too little: what was got, what is allowed, a fix."""


def trace_of_minutes(
    rows: Sequence[Row], name: str, context: int, most_rounds: int = MOST_ROUNDS
) -> Trace:
    """Returns a trace like what the minutes tell.

    Args:
        rows: Minutes, oldest first.
        name: Of the trace.
        context: Tokens of a request.
        most_rounds: In all.

    Raises:
        MinutesError: Trees ran, or hardly any drafts.
    """
    rows = [row for row in rows if row.get("rounds") and row.get("accepted")]
    _check(rows, name)
    places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_MINUTES)).round().astype(int)
    chosen = [rows[place] for place in places]
    weights = np.array([sum(row["rounds"].values()) for row in chosen], float)
    numbers = np.ceil(weights / weights.sum() * min(most_rounds, weights.sum())).astype(int)
    luck = np.random.default_rng(SEED)
    rounds: list[TraceRound] = []
    for row, number in zip(chosen, numbers.tolist(), strict=True):
        rounds += _stretch(row, number, context, luck)
    deepest = max(one.num_steps for one in rounds)
    header = TraceHeader(kind="recorded", name=name, max_steps=max(deepest, 1))
    return Trace(header, tuple(rounds))


def _stretch(row: Row, number: int, context: int, luck: np.random.Generator) -> list[TraceRound]:
    """Returns ``number`` rounds as those of a minute."""
    labels = list(row["rounds"])
    ran = np.array([row["rounds"][label] for label in labels], float)
    request_rounds = sum(sum(each.values()) for each in row["accepted"].values())
    size = max(round(request_rounds / ran.sum()), 1)
    second = row["seconds"] / number
    stretch = []
    for place, idx in enumerate(luck.choice(len(labels), number, p=ran / ran.sum()).tolist()):
        histogram = row["accepted"].get(labels[idx], {"0": 1})
        weights = np.array(list(histogram.values()), float)
        counts = [int(count) for count in histogram]
        drawn = luck.choice(counts, size, p=weights / weights.sum())
        stretch.append(
            TraceRound(
                time_s=row["start"] + place * second,
                context_tokens=context * size,
                num_steps=int(labels[idx]),
                requests=list(range(size)),
                num_correct_drafts=drawn.tolist(),
            )
        )
    return stretch


def _check(rows: Sequence[Row], name: str) -> None:
    trees = sorted({label for row in rows for label in row["rounds"] if "-" in label})
    if trees:
        raise MinutesError(
            f"{name} ran the tree {trees[0]}, and only chains are replayed; allowed: a server of "
            "chains; fix: tune one without candidate_tiers."
        )
    drafted = sum(
        sum(histogram.values())
        for row in rows
        for label, histogram in row["accepted"].items()
        if label != "0"
    )
    if drafted < LEAST_DRAFTED:
        raise MinutesError(
            f"{name} drafted for {drafted} requests and rounds, which does not say what drafts "
            f"would give; allowed: {LEAST_DRAFTED} or more; fix: let it serve for a while with the "
            "default config, which drafts now and then."
        )
