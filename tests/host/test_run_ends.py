"""A run of decodes is over when a request has ended in it, as far as tokens have arrived.

So it is when another one comes.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq

MOST_DECODES = 8
EOS, STOP, OTHER = 7, 9, 3


class LateEvent:
    """A mark that the device reaches when it is told to."""

    def __init__(self) -> None:
        self.is_done = False
        self.num_waits = 0

    def record(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.num_waits += 1
        self.is_done = True


@pytest.fixture(scope="module")
def run_ends(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import run_ends

    return run_ends


def request(limit: int | None = None, num_known: int = 0, **params: Any) -> Any:
    sampling = {"ignore_eos": False, "stop_token_ids": [STOP], "max_new_tokens": limit, **params}
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**sampling),
        eos_token_ids={EOS},
        tokenizer=None,
        output_ids=[OTHER] * num_known,
    )


def batch(*reqs: Any) -> Any:
    return SimpleNamespace(reqs=reqs, req_pool_indices_cpu=torch.arange(len(reqs)))


def watching(run_ends: Any, served: Any, has_overlap: bool = True) -> Any:
    ends = run_ends.RunEnds("cpu", MOST_DECODES, has_overlap)
    ends.begin(served)
    return ends


def tokens(*drawn: int) -> torch.Tensor:
    return torch.tensor(drawn)


@pytest.mark.parametrize("last", [EOS, STOP])
def test_one_ended_answer_of_several_is_enough(run_ends: Any, last: int) -> None:
    ends = watching(run_ends, batch(request(), request()))
    ends.take(tokens(OTHER, OTHER))
    assert not ends.is_over()
    ends.take(tokens(OTHER, last))
    assert ends.is_over()


def test_a_token_counts_only_when_it_has_arrived(run_ends: Any) -> None:
    ends = watching(run_ends, batch(request()))
    events = ends._events = [LateEvent() for _ in ends._events]
    for drawn in (OTHER, EOS):
        ends.take(tokens(drawn))
    assert not ends.is_over()
    events[1].is_done = True  # never before those that were launched before it
    assert not ends.is_over()
    events[0].is_done = True
    assert ends.is_over()
    assert not any(each.num_waits for each in events)


def test_the_cpu_stays_a_few_decodes_ahead(run_ends: Any) -> None:
    ends = watching(run_ends, batch(request()))
    events = ends._events = [LateEvent() for _ in ends._events]
    for number in range(MOST_DECODES):
        ends.take(tokens(EOS if number == 3 else OTHER))
        is_seen = ends.is_over()
        assert len(ends._pending) < run_ends.MOST_IN_FLIGHT
        if is_seen:
            break
    assert number == 3 + run_ends.MOST_IN_FLIGHT - 1
    assert [each.num_waits for each in events[: number + 1]] == [1, 1, 1, 1, 0, 0]


def test_an_end_in_the_round_before_counts_until_the_scheduler_has_acted_on_it(
    run_ends: Any,
) -> None:
    served = batch(request())
    ends = watching(run_ends, served)
    ends.take(tokens(EOS))
    assert ends.is_over()
    found = []
    for _ in range(run_ends.ROUNDS_UNTIL_KNOWN + 1):
        ends.begin(served)
        found.append(ends.is_over())
    assert found == [True] * run_ends.ROUNDS_UNTIL_KNOWN + [False]
    ends.take(tokens(EOS))
    ends.begin(batch(request()))  # the scheduler lets another one in
    assert not ends.is_over()


def test_what_never_ends_an_answer_is_not_looked_for(run_ends: Any) -> None:
    ends = watching(run_ends, batch(request(ignore_eos=True)))
    ends.take(tokens(EOS))
    assert not ends.is_over()


def test_a_tokenizer_knows_more_ends(run_ends: Any) -> None:
    req = request(stop_token_ids=None)
    req.tokenizer = SimpleNamespace(eos_token_id=11, additional_stop_token_ids={12})
    assert run_ends.ending_tokens(req) == {EOS, 11, 12}
    req.tokenizer.additional_stop_token_ids = req.eos_token_ids = None
    assert run_ends.ending_tokens(req) == {11}


@pytest.mark.parametrize(("has_overlap", "num_decodes"), [(True, 2), (False, 3)])
def test_a_limit_ends_a_run_what_is_in_flight_included(
    run_ends: Any, has_overlap: bool, num_decodes: int
) -> None:
    """Of ten tokens seven are known; under the overlap schedule prefill's is in flight."""
    ends = watching(run_ends, batch(request(), request(10, num_known=7)), has_overlap)
    for _ in range(num_decodes):
        assert not ends.is_over()
        ends.take(tokens(OTHER, OTHER))
    assert ends.is_over()


def test_a_run_in_flight_counts_towards_the_limit(run_ends: Any) -> None:
    req = request(10)
    served = batch(req)
    ends = watching(run_ends, served)
    for _ in range(4):
        ends.take(tokens(OTHER))
    req.output_ids = [OTHER]  # prefill's; the four are in flight
    ends.begin(served)
    for _ in range(5):
        assert not ends.is_over()
        ends.take(tokens(OTHER))
    assert ends.is_over()


def test_a_request_that_comes_ends_a_run(run_ends: Any) -> None:
    context = zmq.Context()
    sends, receives = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    port = receives.bind_to_random_port("tcp://127.0.0.1")
    sends.connect(f"tcp://127.0.0.1:{port}")
    try:
        ends = watching(run_ends, batch(request()))
        ends.has_arrival = lambda: run_ends.has_message(receives)
        ends.take(tokens(OTHER))
        assert not ends.is_over()
        sends.send(b"request")
        assert receives.poll(5000)
        for _ in range(2):  # until the scheduler takes it
            assert ends.is_over()
        receives.recv()
        assert not ends.is_over()
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("num_launched", [1, 3])
def test_a_prefill_is_launched_beside_a_few_decodes(run_ends: Any, num_launched: int) -> None:
    """Nothing is waited for; what is in flight keeps the GPU busy until the prefill is launched."""
    ends = watching(run_ends, batch(request()))
    events = ends._events = [LateEvent() for _ in ends._events]
    for _ in range(num_launched):
        ends.take(tokens(OTHER))
    ends.has_arrival = lambda: True
    found = []
    for _ in range(num_launched, run_ends.MOST_AT_ARRIVAL):
        found.append(ends.is_over())
        ends.take(tokens(OTHER))
    assert not any(found)
    assert ends.is_over()
    events[0].is_done = True  # one less in flight
    assert not ends.is_over()
    assert not any(each.num_waits for each in events)


@pytest.mark.parametrize(("is_cpu", "has_overlap"), [(True, True), (True, False), (False, False)])
def test_where_nothing_runs_beside_a_request_that_comes_ends_a_run_at_once(
    run_ends: Any, is_cpu: bool, has_overlap: bool
) -> None:
    ends = watching(run_ends, batch(request()), has_overlap)
    if not is_cpu:
        ends._events = [LateEvent() for _ in ends._events]
    ends.take(tokens(OTHER))
    ends.has_arrival = lambda: True
    assert ends.is_over()


def test_nothing_is_known_of_what_is_no_socket(run_ends: Any) -> None:
    assert not run_ends.has_message(None)
    assert not run_ends.has_message(SimpleNamespace(drain=list))


def test_more_requests_are_not_watched(run_ends: Any) -> None:
    size = run_ends.MOST_WATCHED + 1
    ends = watching(run_ends, batch(*[request(1) for _ in range(size)]))
    ends.take(tokens(*[EOS] * size))
    assert not ends.is_over()


def test_tokens_of_many_decodes_go_round(run_ends: Any) -> None:
    served = batch(request())
    ends = watching(run_ends, served)
    for _ in range(5):
        ends.begin(served)
        for _ in range(MOST_DECODES):
            ends.take(tokens(OTHER))
    assert not ends.is_over()
    ends.take(tokens(EOS))
    assert ends.is_over()
