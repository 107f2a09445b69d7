"""Zero-step rounds use up the slots that were reserved once, and relay no drafts twice."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive_spec.host.host_round import open_round

LARGEST = 8  # tokens that the largest round may write for a request


@pytest.fixture(scope="module")
def module(plugins_loaded: None) -> Iterator[Any]:
    from sglang_adaptive_spec.host.serving import repeats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "get_alloc_reserve_per_decode", lambda: 2 * LARGEST)
        yield repeats


class Scheduler:
    """The host's reservation for one batch, as far as slots are concerned."""

    def __init__(self, module: Any, num_requests: int = 1) -> None:
        self.repeats = module.Repeats()
        open_round(())
        self.penalties = SimpleNamespace(is_required=False)
        self.reqs = [SimpleNamespace(decode_batch_idx=0) for _ in range(num_requests)]
        self.num_reserved = self.num_evictions = 0
        self.committed = self.allocated = self.in_flight = 0
        self.join()

    def join(self) -> None:
        """Puts a new request into the batch, which replaces the host's tensor of rows."""
        self.rows = torch.arange(len(self.reqs))

    def round(self, gained: int, is_zero: bool) -> None:
        """Prepares a round, whose result is processed one round later, and launches it."""
        batch = SimpleNamespace(
            req_pool_indices_cpu=self.rows,
            reqs=self.reqs,
            sampling_info=SimpleNamespace(penalizer_orchestrator=self.penalties),
            maybe_evict_swa=self._evict,
        )
        self.repeats.reserve(self._prepare, batch)
        assert self.committed + self.in_flight + LARGEST <= self.allocated
        self.committed += self.in_flight
        self.in_flight = gained
        open_round(self.reqs).num_decodes = gained if is_zero else None

    def _prepare(self, batch: Any) -> None:
        self.num_reserved += 1
        batch.maybe_evict_swa()
        self.allocated = max(self.allocated, self.committed + 2 * LARGEST)
        for req in batch.reqs:
            req.decode_batch_idx += 1

    def _evict(self) -> None:
        self.num_evictions += 1


def serve(module: Any, rounds: Sequence[tuple[int, bool]]) -> Scheduler:
    """Returns the host after ``rounds``: tokens gained, whether it was a zero-step round."""
    scheduler = Scheduler(module, num_requests=2)
    for each in rounds:
        scheduler.round(*each)
    return scheduler


@given(
    rounds=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 4, LARGEST]), st.booleans(), st.booleans())
    )
)
def test_every_round_has_slots_for_the_largest(
    module: Any, rounds: list[tuple[int, bool, bool]]
) -> None:
    scheduler = Scheduler(module)
    for gained, is_zero, has_joined in rounds:
        if has_joined:
            scheduler.join()
        scheduler.round(gained, is_zero)


def test_seven_of_eight_single_decodes_reserve_nothing(module: Any) -> None:
    num_rounds = 1 + 8 * 5
    scheduler = serve(module, [(1, True)] * num_rounds)
    assert scheduler.num_reserved == pytest.approx(num_rounds / 8, abs=1)
    assert scheduler.num_evictions == num_rounds
    assert {req.decode_batch_idx for req in scheduler.reqs} == {num_rounds}


def test_drafting_rounds_reserve_every_time(module: Any) -> None:
    assert serve(module, [(1, False)] * 20).num_reserved == 20


def test_a_request_that_joins_has_slots_reserved_at_once(module: Any) -> None:
    scheduler = serve(module, [(1, True)] * 3)
    num_reserved = scheduler.num_reserved
    scheduler.join()
    scheduler.round(1, is_zero=True)
    assert scheduler.num_reserved == num_reserved + 1


def test_penalties_are_always_the_hosts_to_accumulate(module: Any) -> None:
    scheduler = Scheduler(module)
    scheduler.penalties.is_required = True
    for _ in range(5):
        scheduler.round(1, is_zero=True)
    assert scheduler.num_reserved == 5


@pytest.mark.parametrize("is_known", [True, False])
def test_drafts_that_were_relayed_already_are_not_written_again(
    module: Any, is_known: bool
) -> None:
    drafts, written = torch.tensor([[3], [4]]), []
    relay = SimpleNamespace(stash_bonus_tokens=lambda *args: written.append(("tokens", args)))
    open_round(()).relayed = drafts if is_known else drafts.clone()
    payload = SimpleNamespace(topk_index=drafts, bonus_tokens="tokens of the round")
    module.relay_changes(lambda *args: written.append(("all", args)), relay, "rows", payload)
    expected = ("tokens", ("rows", "tokens of the round"))
    assert written == [expected if is_known else ("all", (relay, "rows", payload))]


def test_a_prefill_without_drafts_is_relayed_by_the_host(module: Any) -> None:
    open_round(())
    written: list[Any] = []
    payload = SimpleNamespace(topk_index=None, bonus_tokens=None)
    module.relay_changes(lambda *args: written.append(args), "relay", "rows", payload)
    assert written == [("relay", "rows", payload)]
