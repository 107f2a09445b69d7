"""How many tokens injected acceptance yields, on average and around it."""

from collections.abc import Mapping, Sequence

PACKED = "packed"  # rounds whose depth tells no tokens


def num_steps_of(key: str) -> int:
    """Returns the depth of a key of a window's rounds; no speculation is zero steps."""
    return 0 if key == "none" else int(key)


def tokens_per_round(probability: float, num_steps: int) -> float:
    """Returns the expected tokens of one request in one round, its bonus token included."""
    return sum(probability**step for step in range(num_steps + 1))


def expected_tokens(row_probabilities: Sequence[float], rounds: Mapping[str, int]) -> float:
    """Returns the expected tokens of the whole batch over ``rounds`` (by num_steps, or none).

    Packed rounds are left out.
    """
    return sum(
        count * sum(tokens_per_round(each, num_steps_of(key)) for each in row_probabilities)
        for key, count in rounds.items()
        if key != PACKED
    )


def tokens_variance(row_probabilities: Sequence[float], rounds: Mapping[str, int]) -> float:
    """Returns the variance of the counted tokens around the expected ones."""
    return sum(
        count * sum(_round_variance(each, num_steps_of(key)) for each in row_probabilities)
        for key, count in rounds.items()
        if key != PACKED
    )


def _round_variance(probability: float, num_steps: int) -> float:
    # E[L^2] of the accepted length L = sum over k >= 1 of (2 k - 1) P(L >= k), P(L >= k) = p^k
    mean = tokens_per_round(probability, num_steps) - 1
    square = sum((2 * step - 1) * probability**step for step in range(1, num_steps + 1))
    return square - mean**2
