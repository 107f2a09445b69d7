"""What the controller is told of decode batches, and how seldom their requests are read."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

CONTEXT_LEN, RESERVE = 1000, 16


class CountedKv:
    """The KV of a request, which counts how often its length is read."""

    def __init__(self, length: int) -> None:
        self.length, self.num_reads = length, 0

    @property
    def kv_committed_len(self) -> int:
        self.num_reads += 1
        return self.length


def request(length: int, **changed: Any) -> SimpleNamespace:
    usual = {
        "stream": False,
        "return_routed_experts": False,
        "return_indexer_topk": False,
        "sampling_params": SimpleNamespace(stream_interval=None),
    }
    return SimpleNamespace(kv=CountedKv(length), **{**usual, **changed})


def batch_of(*reqs: SimpleNamespace, **changed: Any) -> SimpleNamespace:
    info = SimpleNamespace(
        has_custom_logit_processor=False, acc_additive_penalties=None, penalizer_orchestrator=None
    )
    usual = {
        "has_grammar": False,
        "return_logprob": False,
        "return_hidden_states": False,
        "global_num_tokens": None,
        "sampling_info": info,
    }
    return SimpleNamespace(
        reqs=list(reqs),
        req_pool_indices_cpu=torch.arange(1, len(reqs) + 1),
        req_to_token_pool=SimpleNamespace(req_generation=torch.zeros(9, dtype=torch.int64)),
        **{**usual, **changed},
    )


class NothingSet:
    """An admission where no request sets anything for itself."""

    def of(self, _keys: object, _reqs: object) -> tuple[dict[object, int], None]:
        return {}, None


@pytest.fixture
def batches(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang_adaptive_spec.host.serving import runs
    from sglang_adaptive_spec.host.serving.decode_batches import DecodeBatches

    monkeypatch.setattr(runs, "get_serving", lambda: SimpleNamespace(stream_interval=1))
    made = DecodeBatches(CONTEXT_LEN, RESERVE, "processors", NothingSet(), most_decodes=8)
    made.waiting = lambda: ()
    return made


def test_rows_and_lengths_are_told(batches: Any) -> None:
    batch = batch_of(request(100), request(200))
    told = batches.of(batch, may_run=True, is_stay=True)
    assert (told.size, len(set(told.requests)), told.context_tokens) == (2, 2, 300)
    assert told.lengths() == [100, 200]
    assert not told.is_near_end
    assert told.exact is None


def test_lengths_are_read_once_in_some_rounds_while_the_batch_stays(batches: Any) -> None:
    from sglang_adaptive_spec.host.serving.decode_batches import LENGTHS_ROUNDS

    req = request(100)
    batch = batch_of(req)
    for _ in range(3 * LENGTHS_ROUNDS):
        batches.of(batch, may_run=True, is_stay=True)
        req.kv.length += 1
    assert req.kv.num_reads == 3
    requests = batches.of(batch, may_run=True, is_stay=True).requests
    assert batches.of(batch, may_run=True, is_stay=True).requests is requests


def test_a_batch_with_other_rows_is_read_at_once(batches: Any) -> None:
    batches.of(batch_of(request(100)), may_run=True, is_stay=True)
    told = batches.of(batch_of(request(7), request(8)), may_run=True, is_stay=True)
    assert (told.size, told.context_tokens, told.lengths()) == (2, 15, [7, 8])


def test_the_end_of_the_context_is_seen_in_the_very_round(batches: Any) -> None:
    req = request(CONTEXT_LEN - 4 * RESERVE)
    batch = batch_of(req, request(10))
    seen = []
    while req.kv.length + RESERVE <= CONTEXT_LEN + 3:
        seen.append(batches.of(batch, may_run=True, is_stay=True).is_near_end)
        req.kv.length += 1
    due = [CONTEXT_LEN - 4 * RESERVE + idx + RESERVE > CONTEXT_LEN for idx in range(len(seen))]
    assert seen == due
    assert sum(seen) == 3


def test_first_tokens_are_not_held_up_by_a_run(batches: Any) -> None:
    """Nor does anybody hold up a run who comes beside others."""

    def most(batch: Any) -> int:
        found: int = batches.of(batch, may_run=True, is_stay=True).most_decodes
        return found

    alone = batch_of(request(100))
    assert [most(alone) for _ in range(3)] == [1, 8, 8]
    both = batch_of(request(100), request(200))
    assert most(both) == 8
    both.req_to_token_pool.req_generation[:] += 1  # other requests have taken both places
    both.req_pool_indices_cpu = both.req_pool_indices_cpu.clone()
    assert [most(both) for _ in range(2)] == [1, 8]


@pytest.mark.parametrize(
    "why",
    ["nothing", "others", "waiting", "near the end", "a stream", "routed experts", "logprobs"],
)
def test_a_round_runs_several_decodes_unless_something_must_see_each_token(
    batches: Any, why: str
) -> None:
    length = CONTEXT_LEN - 1 if why == "near the end" else 100
    shown = {"return_routed_experts": True} if why == "routed experts" else {}
    if why == "a stream":
        shown = {"stream": True, "sampling_params": SimpleNamespace(stream_interval=4)}
    if why == "waiting":
        batches.waiting = lambda: ("somebody",)
    batch = batch_of(request(100), request(length, **shown), return_logprob=why == "logprobs")
    for _ in range(2):  # the first round of a batch runs one anyway
        told = batches.of(batch, may_run=why != "others", is_stay=True)
    assert told.most_decodes == (8 if why == "nothing" else 1)
    assert told.num_waiting == (why == "waiting")


def test_the_first_round_of_a_stay_runs_one_decode_and_says_what_later_ones_may(
    batches: Any,
) -> None:
    told = batches.of(batch_of(request(100)), may_run=True, is_stay=False)
    assert (told.most_decodes, told.most_in_stay) == (1, 8)
    batches.waiting = lambda: ("somebody",)
    told = batches.of(batch_of(request(100)), may_run=True, is_stay=False)
    assert (told.most_decodes, told.most_in_stay) == (1, 1)
