"""What a decode batch says of its rows: who holds them, and how many tokens have KV."""

from types import SimpleNamespace

import torch


def test_rows_are_told_apart_and_their_tokens_counted(plugins_loaded: None) -> None:
    from sglang.srt.managers.schedule_batch import ReqKvInfo

    from sglang_adaptive_spec.host.batch import context_lengths, row_keys

    lengths = {1: 1001, 2: 1002, 3: 1003}
    generation = torch.tensor([0, 5, 2, 9])
    batch = SimpleNamespace(
        reqs=[
            SimpleNamespace(kv=ReqKvInfo(req_pool_idx=row, kv_committed_len=length))
            for row, length in lengths.items()
        ],
        req_pool_indices_cpu=torch.tensor([*lengths]),
        req_to_token_pool=SimpleNamespace(req_generation=generation),
    )
    assert context_lengths(batch.reqs) == [*lengths.values()]
    before = set(row_keys(batch))
    assert len(before) == len(lengths)
    generation += 1  # the rows were given away again
    assert before.isdisjoint(row_keys(batch))
