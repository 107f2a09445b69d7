"""A catch-up of more requests than decode graphs hold goes in parts that they hold.

Without a graph the draft's head would compute the logits of every position of the window, 15 times
as many as are read. A part is a copy of the host's batch with some of its rows; the host's
draft-extend cannot tell it from a batch. Each part waits for the one before.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.backlog import one_at_a_time
from sglang_adaptive_spec.host.events import DoneEvent

# What the next drafting round reads and the last draft-extend wrote; a round without a
# draft-extend hands it on (sglang 0.5.23 eagle_info.py:EagleDraftInput).
RELAYED = ("topk_p", "topk_index", "hidden_states", "draft_probs", "dsa_topk_indices")
# Of a ScheduleBatch, per row, as far as a draft-extend reads them (sglang 0.5.23
# eagle_worker_common.py:prepare_for_draft_extend, forward_batch_info.py:ForwardBatch.init_new).
PER_ROW = (
    "reqs",
    "req_pool_indices",
    "seq_lens",
    "seq_lens_cpu",
    "orig_seq_lens",
    "multimodal_inputs",
    "top_logprobs_nums",
    "token_ids_logprobs",
)
# Of its SamplingBatchInfo, as far as a draft-extend that draws its proposals reads them (sglang
# 0.5.23 eagle_worker_v2.py:_draft_extend_for_decode).
SAMPLED_PER_ROW = ("temperatures", "top_ks", "sampling_seed")


def row_parts(num_rows: int, part_size: int) -> Iterator[slice]:
    """Returns slices of at most ``part_size`` rows that cover all of ``num_rows``."""
    for start in range(0, num_rows, part_size):
        yield slice(start, start + part_size)


def extend_in_parts(
    extend_part: Callable[[Any, slice, Any], None],
    batch: Batch,
    next_input: DraftInput,
    parts: Iterable[slice],
    last: DoneEvent | None,
) -> None:
    """Lets ``extend_part`` extend every part of ``batch``; writes what is relayed, by row.

    Args:
        extend_part: takes a batch, its rows in ``batch``, and the draft input to write into.
        batch: the host's, as it would be extended at once; left as it is.
        next_input: the draft input of the next round, of all rows.
        parts: slices that cover all rows, in order.
        last: marks the last part on the device, also that of the catch-up before; None on a CPU.
    """
    written = []
    for part in parts:
        draft_input = EagleDraftInput()
        with one_at_a_time(last):
            extend_part(rows_of(batch, part), part, draft_input)
        written.append(draft_input)
    for name in RELAYED:
        values = [getattr(each, name) for each in written]
        is_there = all(value is not None for value in values)
        setattr(next_input, name, torch.cat(values) if is_there else None)


def rows_of(batch: Batch, part: slice) -> Batch:
    """Returns a copy of ``batch`` with the rows of ``part`` alone."""
    rows: Batch = _cut(batch, PER_ROW, part)
    rows.sampling_info = _cut(batch.sampling_info, SAMPLED_PER_ROW, part)
    rows.seq_lens_sum = None  # computed anew from the lengths
    return rows


def _cut(whole: Any, names: Iterable[str], part: slice) -> Any:
    """Returns a copy of ``whole`` with ``part`` of those of its fields that are there."""
    cut = copy.copy(whole)
    for name in names:
        value = getattr(whole, name)
        if value is not None:
            setattr(cut, name, value[part])
    return cut
