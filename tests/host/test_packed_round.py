"""A packed round: where its tokens stand, what is cut off, and what is known beyond it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.host.serving.packed_round import PackedLayout, PackedRound, PackedRounds
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.tiers import DecodeBatch, Plan, chain_tier

LENS, WIDTH = (2, 4, 1), 4


def packed_round() -> tuple[PackedRound, Round]:
    options = SimpleNamespace(startup_tier=chain_tier(7))
    engine: Any = SimpleNamespace(options=options, device="cpu")
    launched = Round(0, DecodeBatch(3, ("a", "b", "c")), Plan(chain_tier(3), verify_lens=LENS))
    launched.kept = [length - 1 for length in LENS]
    hidden_mode: Any = None
    return PackedRounds(engine, hidden_mode).begin(chain_tier(3), LENS, launched), launched


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
    again = rounds.begin(chain_tier(3), LENS)
    assert again._packing is packed._packing
    assert rounds.begin(chain_tier(3), (1, 1, 1))._packing is not packed._packing
