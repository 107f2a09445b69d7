"""A packed round: where its tokens stand, what is cut off, and what is known beyond it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_adaptive_spec.host.drafters.confidences import Confidences
from sglang_adaptive_spec.host.serving.packed_round import (
    PackedLayout,
    PackedRound,
    PackedRounds,
    chosen_lengths,
)
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.acceptance.confidence import hazards_by
from sglang_adaptive_spec.policy.packing import lengths
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, chain_tier

LENS, WIDTH = (2, 4, 1), 4


def packed_round() -> tuple[PackedRound, Round]:
    options = SimpleNamespace(startup_tier=chain_tier(7))
    engine: Any = SimpleNamespace(options=options, device="cpu")
    launched = Round(0, DecodeBatch(3, ("a", "b", "c")), Plan(chain_tier(3), verify_lens=LENS))
    launched.kept = [length - 1 for length in LENS]
    hidden_mode: Any = None
    return PackedRounds(engine, hidden_mode).begin(launched.plan, launched), launched


def test_the_tokens_of_each_row_stand_behind_each_other() -> None:
    packing = PackedLayout.of(LENS, WIDTH, "cpu")
    assert packing.places.tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert packing.layout.graph_num_tokens == packing.layout.total_verify_tokens == 7
    assert packing.layout.extend_start_loc.tolist() == [0, 2, 6]
    assert packing.layout.verify_lens_cpu == list(LENS)


@pytest.mark.parametrize("lens", [(0, 2), ()])
def test_each_row_verifies_its_root_at_least(lens: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least one|verify_len >= 1"):
        PackedLayout.of(lens, WIDTH, "cpu")


def test_outputs_stand_in_windows_and_zeros_elsewhere() -> None:
    packed, _ = packed_round()
    logits = torch.arange(1.0, 15.0).reshape(7, 2)
    output = SimpleNamespace(next_token_logits=logits, hidden_states=None)
    packed.unpack(output)
    assert output.hidden_states is None
    windows = output.next_token_logits.reshape(3, WIDTH, 2)
    assert torch.equal(windows[0, :2], logits[:2])
    assert torch.equal(windows[1], logits[2:6])
    assert torch.equal(windows[2, :1], logits[6:])
    assert not windows[0, 2:].any()
    assert not windows[2, 1:].any()


def test_no_more_is_accepted_than_was_verified() -> None:
    packed, _ = packed_round()
    index = torch.arange(3 * WIDTH).reshape(3, WIDTH)
    lens, capped = packed.cap(torch.tensor([4, 3, 1], dtype=torch.int32), index)
    assert lens.tolist() == [2, 3, 1]
    assert capped.tolist() == [[0, 1, -1, -1], [4, 5, 6, -1], [8, -1, -1, -1]]


def test_the_first_draft_that_was_not_verified_is_known_where_those_before_it_hold() -> None:
    packed, launched = packed_round()
    drafted = torch.tensor([0, 11, 12, 13, 0, 21, 22, 23, 0, 31, 32, 33])
    predicted = drafted.roll(-1)  # the target says what the draft says
    packed.compare_next(drafted, predicted)
    observation = launched.finish([1, 3, 0])
    # Row b was verified as far as it drafted.
    assert observation.first_draft_correct == [True, None, True]
    assert observation.seen() == ([2, 3, 1], [2, 3, 1])


def test_it_is_not_known_behind_a_draft_that_did_not_hold() -> None:
    packed, launched = packed_round()
    drafted = torch.arange(12)
    packed.compare_next(drafted, drafted)  # the target never says what the draft says
    observation = launched.finish([0, 1, 0])
    assert observation.first_draft_correct == [None, None, False]
    assert observation.seen() == ([0, 1, 0], [1, 3, 1])


def test_lengths_that_stay_are_packed_once() -> None:
    packed, _ = packed_round()
    rounds = packed._rounds
    plan = Plan(chain_tier(3), verify_lens=LENS)
    assert rounds.begin(plan)._packing is packed._packing
    assert rounds.begin(plan._replace(verify_lens=(1, 1, 1)))._packing is not packed._packing


@pytest.mark.parametrize("seed", range(50))
def test_lengths_of_the_device_are_packed_as_those_of_the_cpu(seed: int) -> None:
    draws = np.random.default_rng(seed)
    width, num_rows = int(draws.integers(2, 9)), int(draws.integers(1, 20))
    lens = draws.integers(1, width + 1, num_rows)
    known = PackedLayout.of(tuple(lens.tolist()), width, "cpu")
    found = PackedLayout.on_device(torch.tensor(lens), int(lens.sum()), width)
    for name in ("verify_lens", "places", "lasts", "nexts"):
        assert torch.equal(getattr(found, name), getattr(known, name)), name
    assert torch.equal(found.layout.extend_start_loc, known.layout.extend_start_loc)


@pytest.mark.parametrize("seed", range(50))
def test_the_device_verifies_the_drafts_that_the_policy_would(seed: int) -> None:
    draws = np.random.default_rng(seed)
    steps, num_rows = int(draws.integers(1, 9)), int(draws.integers(1, 20))
    num_drafts = int(draws.integers(1, steps * num_rows + 1))
    confidence = draws.random((num_rows, steps))
    weights = (1.2, *draws.normal(0, 0.5, steps + 2).tolist())
    hazards = hazards_by(confidence.T, weights)
    wanted = lengths(np.multiply.accumulate(hazards, 0), num_drafts) + 1
    values = torch.tensor(confidence), torch.tensor(weights, dtype=torch.float64)
    found = chosen_lengths(*values, num_rows + num_drafts)
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("odd", [float("nan"), 0.0, 1.0])
def test_whatever_the_confidence_as_many_tokens_are_verified_as_were_planned(odd: float) -> None:
    confidence = torch.full((5, 3), 0.5)
    confidence[2, 1] = confidence[4] = odd
    for num_tokens in range(6, 20):
        lens = chosen_lengths(confidence, torch.tensor([1.0, 0.0, 0.0, 0.0]), num_tokens)
        assert lens.sum() == num_tokens
        assert 1 <= lens.min() <= lens.max() <= 4


def confident_round(num_rows: int) -> tuple[PackedRound, Round]:
    """Returns a round of rows whose drafts are the surer the later they come."""
    packed, _ = packed_round()
    rounds, steps = packed._rounds, 3
    alone: Any = SimpleNamespace(are_several=False)
    rounds.confidences = Confidences(32, 7, "cpu", alone)
    sure = torch.arange(1, 32 * 7 + 1).reshape(32, 7) / (32 * 7 + 1)
    rounds.confidences.of(32, 7).copy_(sure)
    plan = Plan(chain_tier(steps), verify_lens=(2,) * num_rows, by_confidence=(1.0, 0.0, 0.0, 0.0))
    launched = Round(0, DecodeBatch(num_rows, tuple(range(num_rows))), plan)
    return rounds.begin(plan, launched), launched


def test_confidence_chooses_when_the_draft_is_done_and_the_cpu_learns_it_with_the_result() -> None:
    packed, launched = confident_round(20)
    packed.choose()
    lens = packed._packing.verify_lens.tolist()
    assert sum(lens) == 40
    assert lens == sorted(lens)
    assert lens[-1] == 4  # the surest row
    packed._rounds.confidences._values.zero_()  # the next draft
    observation = launched.finish([0] * 20)
    assert observation.kept == packed.kept() == [length - 1 for length in lens]
    assert observation.confidence is not None
    assert observation.confidence.shape == (3, 20)
    assert observation.confidence[0, 1] == pytest.approx(8 / 225)


def test_where_too_few_requests_are_left_the_expected_lengths_are_taken() -> None:
    packed, launched = confident_round(8)
    packed.choose()
    assert packed._packing.verify_lens.tolist() == [2] * 8
    assert packed.kept() == [1] * 8
    assert launched.finish([1] * 8).confidence is None
