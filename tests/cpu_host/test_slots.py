"""KV-slot bookkeeping against what each function promises, cell by cell."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_cpu_host.kernels import slots

# The first call into torch takes long on a busy machine.
patient = settings(deadline=None)

POOL_LEN = 24


@st.composite
def requests(draw):
    """Distinct rows of a pool in which every cell is different, with a range in each."""
    rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    starts = [draw(st.integers(0, 8)) for _ in rows]
    ends = [start + draw(st.integers(0, 5)) for start in starts]
    pool = torch.arange(6 * POOL_LEN, dtype=torch.int32).view(6, POOL_LEN) + 1000
    return pool, rows, starts, ends


@patient
@given(requests())
def test_slots_written_for_a_range_are_the_slots_read_back(case):
    pool, rows, starts, ends = case
    before = pool.clone()
    new = torch.arange(sum(ends) - sum(starts)) + 5
    index = (torch.tensor(rows), torch.tensor(starts), torch.tensor(ends))
    slots.assign_req_to_token_pool_cpu(index[0], pool, *index[1:], new, POOL_LEN)
    expected = iter(new.tolist())
    for row, start, end in zip(rows, starts, ends, strict=True):
        for column in range(POOL_LEN):
            is_new = start <= column < end
            assert pool[row, column] == (next(expected) if is_new else before[row, column])
    read = torch.empty_like(new)
    slots.assign_extend_cache_locs_cpu(index[0], pool, *index[1:], read, POOL_LEN)
    assert read.tolist() == new.tolist()


@patient
@given(requests(), st.integers(1, 3), st.integers(1, 4))
def test_each_branch_sees_the_prefix_and_then_its_own_draft_slots(case, topk, num_steps):
    pool, rows, seq_lens, _ = case
    index, lens = torch.tensor(rows), torch.tensor(seq_lens)
    drafts = torch.empty(len(rows) * topk * num_steps, dtype=torch.long)
    slots.assign_draft_cache_locs_contiguous_cpu(
        index, pool, lens, drafts, POOL_LEN, topk, num_steps
    )
    branches = slots.build_draft_decode_metadata_cpu(pool, index, lens, topk, num_steps, POOL_LEN)
    assert branches.shape == (len(rows) * topk, POOL_LEN)
    for i, (row, seq_len) in enumerate(zip(rows, seq_lens, strict=True)):
        for branch in range(topk):
            first = (i * topk + branch) * num_steps
            own = drafts[first : first + num_steps].tolist()
            assert own == [
                int(pool[row, seq_len + branch * num_steps + s]) for s in range(num_steps)
            ]
            seen = branches[i * topk + branch, : seq_len + num_steps].tolist()
            assert seen == pool[row, :seq_len].tolist() + own


def test_drafts_that_would_pass_the_end_of_the_pool_are_cut():
    pool = torch.arange(2 * 8, dtype=torch.int32).view(2, 8)
    one = torch.tensor([1])
    branches = slots.build_draft_decode_metadata_cpu(pool, one, torch.tensor([6]), 2, 3, 8)
    assert branches.tolist() == [[8, 9, 10, 11, 12, 13, 14, 15], [8, 9, 10, 11, 12, 13, 0, 0]]


@patient
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_the_bonus_token_is_the_last_accepted_one(accept_lens):
    tokens = torch.arange(len(accept_lens) * 4)
    bonus = torch.full((len(accept_lens) + 1,), -1, dtype=torch.int32)
    slots.fill_bonus_tokens_cpu(tokens, torch.tensor(accept_lens), bonus, 4)
    assert bonus.tolist() == [i * 4 + n - 1 for i, n in enumerate(accept_lens)] + [-1]


@patient
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_slots_of_accepted_tokens_are_packed_in_order(is_accepted):
    index = torch.tensor([i if kept else -1 for i, kept in enumerate(is_accepted)])
    out_cache_loc = torch.arange(len(is_accepted)) * 3 + 7
    packed = torch.zeros(len(is_accepted), dtype=torch.long)
    slots.fill_accept_out_cache_loc_cpu(index.view(1, -1), out_cache_loc, packed)
    expected = [3 * i + 7 for i, kept in enumerate(is_accepted) if kept]
    assert packed.tolist() == expected + [0] * (len(is_accepted) - len(expected))


@patient
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_rotation_drops_the_first_token_and_appends_the_new_one(lengths, is_selected):
    total = sum(lengths)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    ids, new = torch.arange(total), torch.arange(len(lengths)) + 100
    # A padded request's new token goes to its last real position, which the caller selects.
    places = [start + max(n - 2, 0) for start, n in zip(starts, lengths, strict=True)]
    select = torch.tensor(places) if is_selected else None
    rotated = ids.clone()
    slots.rotate_input_ids_cpu(
        rotated, torch.tensor(starts), torch.tensor(lengths), new.view(-1, 1), select
    )
    for i, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        if n == 0:
            continue
        # The freed last place keeps its old token unless it is the one selected.
        expected = [*range(start + 1, start + n), start + n - 1]
        expected[(places[i] if is_selected else start + n - 1) - start] = 100 + i
        assert rotated[start : start + n].tolist() == expected


@patient
@given(st.permutations(range(6)), st.integers(0, 6))
def test_kv_slots_move_as_if_all_at_once(order, num_moved):
    buffers = [torch.randn(6, 2, 3), torch.randn(6, 5, dtype=torch.float64).to(torch.bfloat16)]
    before = [buffer.clone() for buffer in buffers]
    sources, targets = list(order)[:num_moved], list(range(num_moved))
    slots.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        torch.tensor(targets, dtype=torch.long),
        torch.tensor(sources, dtype=torch.long),
    )
    for buffer, old in zip(buffers, before, strict=True):
        assert torch.equal(buffer[:num_moved], old[sources])
        assert torch.equal(buffer[num_moved:], old[num_moved:])
