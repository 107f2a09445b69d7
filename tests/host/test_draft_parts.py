"""A catch-up in parts writes what one of the whole batch would have written, row by row."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

NUM_ROWS = 7


@pytest.fixture(scope="module")
def draft_parts(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.drafters import parts

    return parts


def sampling() -> Any:
    """Sampling parameters by row, as far as a draft-extend may read them."""
    return SimpleNamespace(
        temperatures=torch.arange(NUM_ROWS) / 10, top_ks=torch.arange(NUM_ROWS), sampling_seed=None
    )


def batch() -> Any:
    """A batch as far as a draft-extend reads it."""
    lens = torch.arange(10, 10 + NUM_ROWS)
    return SimpleNamespace(
        reqs=[f"request {row}" for row in range(NUM_ROWS)],
        req_pool_indices=torch.arange(NUM_ROWS) + 100,
        seq_lens=lens,
        seq_lens_cpu=lens.clone(),
        seq_lens_sum=int(lens.sum()),
        orig_seq_lens=lens.clone(),
        multimodal_inputs=[f"image {row}" for row in range(NUM_ROWS)],
        top_logprobs_nums=list(range(NUM_ROWS)),
        token_ids_logprobs=[[row] for row in range(NUM_ROWS)],
        forward_mode="decode",
        sampling_info=sampling(),
    )


class DraftExtend:
    """A draft-extend, and the device's mark of the last one."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.calls: list[str] = []

    def extend(self, part_of_batch: Any, part: slice, draft_input: Any) -> None:
        self.calls.append("extend")
        rows = part_of_batch.req_pool_indices
        assert part_of_batch.reqs == batch().reqs[part]
        self.seen.append(part_of_batch)
        part_of_batch.forward_mode = "draft extend"
        part_of_batch.seq_lens = part_of_batch.seq_lens - 5
        draft_input.hidden_states = torch.stack([rows, -rows], dim=1).float()
        draft_input.topk_index = rows.unsqueeze(1) * 10
        draft_input.topk_p = torch.ones(len(rows), 1)

    def synchronize(self) -> None:
        self.calls.append("wait")

    def record(self) -> None:
        self.calls.append("mark")


@pytest.mark.parametrize(("part_size", "sizes"), [(3, [3, 3, 1]), (7, [7]), (6, [6, 1])])
def test_every_row_gets_its_own_results(draft_parts: Any, part_size: int, sizes: list[int]) -> None:
    draft, whole, next_input = DraftExtend(), batch(), SimpleNamespace()
    parts = draft_parts.row_parts(NUM_ROWS, part_size)
    draft_parts.extend_in_parts(draft.extend, whole, next_input, parts, None)
    assert [len(each.reqs) for each in draft.seen] == sizes
    rows = whole.req_pool_indices
    assert next_input.topk_index.tolist() == [[10 * row] for row in rows.tolist()]
    assert next_input.hidden_states.tolist() == [[row, -row] for row in rows.tolist()]
    assert next_input.topk_p.shape == (NUM_ROWS, 1)
    assert next_input.draft_probs is next_input.dsa_topk_indices is None


def test_the_batch_itself_is_left_as_it_is(draft_parts: Any) -> None:
    whole = batch()
    before = copy.deepcopy(whole)
    parts = draft_parts.row_parts(NUM_ROWS, 3)
    draft_parts.extend_in_parts(DraftExtend().extend, whole, SimpleNamespace(), parts, None)
    for name, value in vars(before).items():
        now = getattr(whole, name)
        if name == "sampling_info":
            assert torch.equal(now.top_ks, value.top_ks)
        else:
            assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value


def test_every_part_waits_for_the_one_before(draft_parts: Any) -> None:
    """Else its plan would overwrite one that the device has not copied yet."""
    draft = DraftExtend()
    parts = draft_parts.row_parts(NUM_ROWS, 4)
    draft_parts.extend_in_parts(draft.extend, batch(), SimpleNamespace(), parts, draft)
    assert draft.calls == ["wait", "extend", "mark"] * 2


def test_a_part_has_the_rows_of_every_field(draft_parts: Any) -> None:
    whole, part = batch(), draft_parts.rows_of(batch(), slice(3, 5))
    for name in draft_parts.PER_ROW:
        assert list(getattr(part, name)) == list(getattr(whole, name)[3:5])
    assert part.seq_lens_sum is None  # not the whole batch's
    assert part.sampling_info.top_ks.tolist() == [3, 4]
    assert (
        part.sampling_info.temperatures.tolist() == whole.sampling_info.temperatures[3:5].tolist()
    )
    assert len(whole.sampling_info.top_ks) == NUM_ROWS


def test_a_field_that_is_not_there_stays_away(draft_parts: Any) -> None:
    whole = batch()
    whole.multimodal_inputs = None
    assert draft_parts.rows_of(whole, slice(3, 5)).multimodal_inputs is None


def test_a_batch_of_the_host_is_copied_with_its_rows(draft_parts: Any) -> None:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    fields = {name: value for name, value in vars(batch()).items() if name != "forward_mode"}
    whole = ScheduleBatch(**fields)
    part = draft_parts.rows_of(whole, slice(0, 2))
    assert (part.reqs, whole.reqs) == (batch().reqs[:2], batch().reqs)
    assert (part.seq_lens.tolist(), len(whole.seq_lens)) == ([10, 11], NUM_ROWS)
