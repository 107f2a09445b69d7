"""Slots of the tokens to come: one look-up for several decodes, and when there must be another."""

import torch

from sglang_adaptive_spec.host.serving.next_slots import NextSlots

AHEAD = 3
REQ_TO_TOKEN = torch.arange(400, dtype=torch.int32).view(4, 100)
ROWS = torch.tensor([3, 1])


class CountedSlots(NextSlots):
    """Counts look-ups by what they look at."""

    def __init__(self) -> None:
        super().__init__(REQ_TO_TOKEN, AHEAD)
        self.seen: list[torch.Tensor] = []

    def look_up(
        self, rows: torch.Tensor, seq_lens: torch.Tensor, num_left: int = 1
    ) -> torch.Tensor:
        slots = super().look_up(rows, seq_lens, num_left)
        if self._slots is not None and not any(self._slots is each for each in self.seen):
            self.seen.append(self._slots)
        return slots


def expected(rows: torch.Tensor, seq_lens: torch.Tensor) -> list[int]:
    return REQ_TO_TOKEN[rows, seq_lens].tolist()


def test_a_batch_that_stays_is_looked_up_once_for_several_decodes() -> None:
    slots, seq_lens = CountedSlots(), torch.tensor([5, 40])
    for _ in range(2 * AHEAD):
        found = slots.look_up(ROWS, seq_lens)
        assert (found.dtype, found.tolist()) == (torch.int64, expected(ROWS, seq_lens))
        assert found.is_contiguous()
        seq_lens = seq_lens + 1
    assert len(slots.seen) == 2


def test_another_batch_is_looked_up_even_if_its_rows_are_equal() -> None:
    slots = CountedSlots()
    slots.look_up(ROWS, torch.tensor([5, 40]))
    seq_lens = torch.tensor([20, 60])
    assert slots.look_up(ROWS.clone(), seq_lens).tolist() == expected(ROWS, seq_lens)


def test_whoever_moved_the_rows_on_makes_it_look_again() -> None:
    slots = CountedSlots()
    slots.look_up(ROWS, torch.tensor([5, 40]))
    slots.forget()  # a drafting round gave three and one
    seq_lens = torch.tensor([9, 42])
    assert slots.look_up(ROWS, seq_lens).tolist() == expected(ROWS, seq_lens)


def test_a_round_finds_all_its_slots_when_it_begins() -> None:
    slots, seq_lens = CountedSlots(), torch.tensor([5, 40])
    slots.look_up(ROWS, seq_lens)
    for num_left in (3, 2, 1):  # two are known beyond; the third is reserved just now
        seq_lens = seq_lens + 1
        assert slots.look_up(ROWS, seq_lens, num_left).tolist() == expected(ROWS, seq_lens)
        assert len(slots.seen) == 2
