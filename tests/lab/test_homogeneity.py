"""The chi-square test of two samples: known values, a planted difference, silence without one."""

import random
from collections import Counter

import pytest

from benchmarks.stats.homogeneity import (
    REST,
    binned,
    detectable_distance,
    distance,
    holm,
    homogeneity,
    noncentral_survival,
    noncentrality,
    survival,
)

# A next-token distribution with a few likely tokens and a long tail.
TOKENS = [str(token) for token in range(400)]
CHANCES = [1 / (3 + rank) ** 1.3 for rank in range(400)]
NUM_TESTS = 300


def drawn(number: int, seed: str, chances: list[float] = CHANCES) -> Counter[str]:
    """A sample of tokens."""
    return Counter(random.Random(seed).choices(TOKENS, chances, k=number))


def moved(share: float) -> list[float]:
    """The distribution with a share of all tokens moved from the likeliest token to the fourth."""
    total = sum(CHANCES)
    return [
        CHANCES[0] - share * total,
        *CHANCES[1:3],
        CHANCES[3] + share * total,
        *CHANCES[4:],
    ]


@pytest.mark.parametrize(
    ("value", "freedom", "probability"),
    [
        (3.841458820694124, 1, 0.05),  # quantiles of any table of the distribution
        (6.634896601021214, 1, 0.01),
        (18.307038053275146, 10, 0.05),
        (124.34211340400407, 100, 0.05),
        (2.0, 2, 0.36787944117144233),  # two degrees: e^(-x / 2)
        (60.0, 2, 9.357622968840175e-14),
        (0.0, 5, 1.0),
    ],
)
def test_the_survival_function_has_its_known_values(
    value: float, freedom: int, probability: float
) -> None:
    assert survival(value, freedom) == pytest.approx(probability, rel=1e-9)


def test_nothing_to_compare_is_no_difference() -> None:
    assert survival(0.0, 0) == 1.0
    assert homogeneity([({"1": 50}, {"1": 60})]).p_value == 1.0


@pytest.mark.parametrize(
    ("freedom", "level", "power", "expected"),
    [(1, 0.05, 0.8, 7.8489), (1, 0.05, 0.9, 10.5074), (10, 0.05, 0.9, 20.5320)],
)
def test_the_noncentrality_is_that_of_tables_of_power(
    freedom: int, level: float, power: float, expected: float
) -> None:
    assert noncentrality(freedom, level, power) == pytest.approx(expected, abs=2e-4)


def test_without_noncentrality_the_noncentral_distribution_is_the_central_one() -> None:
    assert noncentral_survival(18.3, 10, 0.0) == pytest.approx(survival(18.3, 10))


def test_two_by_two_by_hand() -> None:
    # Expected 40 and 60 in either sample: 4 * 100 / 40 + ... = 2 (100 / 40 + 100 / 60)
    found = homogeneity([({"1": 50, "2": 50}, {"1": 30, "2": 70})])
    assert found.value == pytest.approx(2 * (100 / 40 + 100 / 60))
    assert found.freedom == 1


def test_rare_tokens_share_a_bin_and_nothing_is_lost() -> None:
    first = {"1": 900, "2": 80, "3": 9, "4": 9, REST: 2}
    second = {"1": 900, "2": 80, "3": 8, "5": 12}
    assert binned(first, second) == [(900, 900), (80, 80), (20, 20)]
    # Too few even together: the smallest bin takes them in.
    assert binned({"1": 900, "2": 99, "3": 1}, {"1": 900, "2": 99, "3": 1}) == [
        (900, 900),
        (100, 100),
    ]


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="both need some"):
        homogeneity([({}, {"1": 3})])


@pytest.mark.parametrize("sizes", [(4000, 4000), (2000, 8000)])
def test_equal_distributions_are_found_different_as_often_as_the_level_says(
    sizes: tuple[int, int],
) -> None:
    found = [
        homogeneity([(drawn(sizes[0], f"a{trial}"), drawn(sizes[1], f"b{trial}"))]).p_value
        for trial in range(NUM_TESTS)
    ]
    # Binomial(300, 0.05) and (300, 0.5): four standard deviations
    assert abs(sum(p_value < 0.05 for p_value in found) - 15) <= 15
    assert abs(sum(p_value < 0.5 for p_value in found) - 150) <= 35


def test_a_planted_difference_is_found_and_located_by_its_distance() -> None:
    strata = [
        (drawn(5000, f"a{prompt}"), drawn(5000, f"b{prompt}", moved(0.06))) for prompt in range(4)
    ]
    found = homogeneity(strata)
    assert found.p_value < 1e-6
    assert distance(strata) > 0.06


def test_a_distance_that_is_said_to_be_found_is_found_so_often() -> None:
    size, level, trials = 2000, 0.01, 200
    number = 12  # of tokens, all of them with a bin of their own
    stated = detectable_distance(number - 1, level, 0.9, size, size)
    assert 0.05 < stated < 0.15
    # The same share of every token moves to its neighbour: no shape is harder to find.
    even = [1.0] * number
    uneven = [1 + (-1) ** rank * 2 * stated for rank in range(number)]
    assert sum(abs(a - b) for a, b in zip(even, uneven, strict=True)) / number / 2 == (
        pytest.approx(stated)
    )
    rng = random.Random(1)
    hits = 0
    for _ in range(trials):
        samples = [
            Counter(rng.choices(TOKENS[:number], chances, k=size)) for chances in (even, uneven)
        ]
        hits += homogeneity([(samples[0], samples[1])]).p_value < level
    assert hits / trials == pytest.approx(0.9, abs=0.07)  # three standard deviations


def test_more_samples_find_smaller_distances_and_unequal_sizes_larger_ones() -> None:
    one = detectable_distance(100, 0.001, 0.9, 20000, 20000)
    assert detectable_distance(100, 0.001, 0.9, 80000, 80000) == pytest.approx(one / 2)
    assert detectable_distance(100, 0.001, 0.9, 10000, 30000) > one
    assert detectable_distance(100, 0.0001, 0.9, 20000, 20000) > one


def test_correction_is_holms() -> None:
    # 4 * 0.01, 3 * 0.02 (not below the one before), 2 * 0.03, 0.9
    assert holm([0.9, 0.02, 0.03, 0.01]) == pytest.approx([0.9, 0.06, 0.06, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
