"""Injected acceptance by name: each row's probability, its request ids, and what must come of it.

A name is a probability per position (``0.7``), several that rows have in turn (``0.95/0.3``), or
``mixed``: half the rows at 0.3, half at 0.9. Behind it, ``~3`` scatters the chances of single
drafts about the row's probability p as Beta(3 p, 3 (1 - p)), and the draft's confidence is their
chance; without it a confidence of 0.5 tells nothing. Both travel in the request id, so that the
server needs no other channel. With chains of d drafts, each accepted with probability p if all
before it were, a round yields on average 1 + p + ... + p^d tokens a request, whatever was drawn
before.
"""

import re

# The most tokens that a request may ask for, and the output positions that draws are kept for.
MAX_NEW_TOKENS = 16384
NUM_POSITIONS = MAX_NEW_TOKENS + 128

SEED_ENV = "BENCH_INJECT_SEED"  # set in a server: inject, with this seed
OURS_ENV = "BENCH_INJECT_OURS"  # set: our plugin serves, whose zero-step rounds look at drafts, too
MIXED = "mixed"
MIXED_PROBABILITIES = (0.3, 0.9)
DEFAULT_NAMES = ("0.3", "0.5", "0.7", "0.85", "0.95", MIXED)
_IN_REQUEST_ID = re.compile(r"p(\d\.\d+)(?:k(\d+(?:\.\d+)?))?-")
SCATTERED = "~"


def probabilities(name: str, batch_size: int) -> list[float]:
    """Returns the probability of each row.

    Raises:
        ValueError: The name is no probability, or the rows have no equal parts.
    """
    kinds = kinds_of(name)
    if batch_size % len(kinds):
        raise ValueError(
            f"batch {batch_size} has no {len(kinds)} equal parts: take a multiple for {name}."
        )
    return [kinds[row % len(kinds)] for row in range(batch_size)]


def kinds_of(name: str) -> tuple[float, ...]:
    """Returns the probabilities that rows have in turn.

    Raises:
        ValueError: The name is no probability.
    """
    chances, _, concentration = name.partition(SCATTERED)
    kinds = MIXED_PROBABILITIES if chances == MIXED else tuple(map(float, chances.split("/")))
    if not all(0 <= each < 1 for each in kinds) or float(concentration or 1) <= 0:
        raise ValueError(
            f"acceptance {name!r}: use a probability in [0, 1), several as 0.95/0.3, or {MIXED}; "
            f"behind it {SCATTERED} and a number above 0 scatters them."
        )
    return kinds


def request_ids(name: str, batch_size: int, repeat: int) -> list[str]:
    """Returns an id per row, the same in every arm; another repeat draws anew."""
    concentration = name.partition(SCATTERED)[2]
    scattered = f"k{float(concentration):g}" if concentration else ""
    return [
        f"p{probability:.4f}{scattered}-b{batch_size}-n{repeat}-r{row}"
        for row, probability in enumerate(probabilities(name, batch_size))
    ]


def probability_of(request_id: str) -> float:
    """Returns the probability that a request id carries; one without accepts nothing."""
    found = _IN_REQUEST_ID.match(request_id)
    return float(found.group(1)) if found else 0.0


def concentration_of(request_id: str) -> float:
    """Returns how closely chances lie about the probability in a request id; 0: all are it."""
    found = _IN_REQUEST_ID.match(request_id)
    return float(found.group(2) or 0.0) if found else 0.0
