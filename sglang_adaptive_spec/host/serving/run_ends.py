"""Says, while a run of decodes is launched, when it is over: a request has ended, or one comes.

The scheduler reads the tokens of a round when the next one is launched. Until then a request that
has ended decodes for nothing: the rest of its run, and all of the run launched behind it. So tokens
are copied to the CPU; those that have arrived are looked at before another decode is launched, and
a run is over where one of them ends an answer. Text never depends on it: the scheduler finds ends
by itself.

The CPU launches decodes faster than the GPU runs them. It would be through with a run before the
run's first token has arrived, so it stays at most `MOST_IN_FLIGHT` decodes ahead. Without
speculation the host waits the same way, for every round.

A request that comes would wait for the rest of the run, too. But its prefill is no sooner ready
than the CPU has launched it, and until then the GPU has nothing but what was launched before. So
where something lies in the socket that the scheduler reads, a run is over with `MOST_AT_ARRIVAL`
decodes in flight: fewer would let the GPU idle, more would let the request wait.

Ranks with the same requests would see both at different times, so they do not look.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import zmq

from sglang_adaptive_spec.host.batch import Batch, Request
from sglang_adaptive_spec.host.events import DoneEvent
from sglang_adaptive_spec.policy.run_length import MOST_WATCHED

# Rounds behind an end until the scheduler has acted on it; after them it was none.
ROUNDS_UNTIL_KNOWN = 2
# A choice. One decode runs; the others keep the GPU busy while the CPU closes a round and opens the
# next, which takes 2 to 3 ms where a decode takes 1.9 (1.5B model, H200).
MOST_IN_FLIGHT = 3
# To launch a prefill takes the CPU as long as four of those decodes: the last round before one took
# 10.6, 10.6, 10.8 and 10.7 ms with one to four of them.
MOST_AT_ARRIVAL = 4
NO_LIMIT = 2**62


class RunEnds:
    """Looks at the tokens of small batches as they arrive.

    Args:
        device: Decodes run there.
        most_decodes: Of a round.
        has_overlap: Whether a round is launched before the scheduler reads the one before.
    """

    def __init__(self, device: str, most_decodes: int, has_overlap: bool) -> None:
        is_cpu = torch.device(device).type == "cpu"
        places = range(ROUNDS_UNTIL_KNOWN * most_decodes)
        shape = (len(places), MOST_WATCHED)
        self._tokens = torch.empty(shape, dtype=torch.int64, pin_memory=not is_cpu)
        self._events: list[DoneEvent | None] = [
            None if is_cpu else torch.get_device_module(device).Event() for _ in places
        ]
        self._has_overlap = has_overlap
        self._pending: deque[int] = deque(maxlen=len(places))  # places of copies, oldest first
        self._next = 0
        self._rows: object = None  # of the batch: the host's tensor, another one with every change
        self._ending: list[frozenset[int]] = []  # tokens, by row; empty: too many requests
        self._num_left = NO_LIMIT  # tokens until a request reaches its limit
        self._num_decodes = 0  # of the round
        self._rounds_since: int | None = None  # an end was seen
        self.has_arrival: Callable[[], bool] = lambda: False  # nobody knows yet

    def begin(self, batch: Batch) -> None:
        """Takes the batch of a round that is about to decode."""
        num_in_flight = self._num_decodes
        if batch.req_pool_indices_cpu is not self._rows:
            self._rows, num_in_flight = batch.req_pool_indices_cpu, 1
            is_watched = len(batch.reqs) <= MOST_WATCHED
            self._ending = [ending_tokens(req) for req in batch.reqs] if is_watched else []
            self._pending.clear()
            self._rounds_since = None
        self._num_decodes = 0
        if self._ending:
            self._num_left = tokens_left(batch.reqs) - num_in_flight * self._has_overlap
        if self._rounds_since is not None:
            self._rounds_since += 1
            if self._rounds_since > ROUNDS_UNTIL_KNOWN:
                self._rounds_since = None

    def take(self, tokens: torch.Tensor) -> None:
        """Takes what a decode of the round drew: [bs]."""
        self._num_decodes += 1
        if not self._ending:
            return
        place, event = self._next, self._events[self._next]
        self._next = (place + 1) % len(self._events)
        self._tokens[place, : len(tokens)].copy_(tokens, non_blocking=True)
        if event is not None:
            event.record()
        self._pending.append(place)

    def is_over(self) -> bool:
        """Returns whether a request has ended, as far as its tokens have arrived, or another comes.

        Waits until one more decode may be launched.
        """
        if not self._ending:
            return False
        pending, events, is_coming = self._pending, self._events, self.has_arrival()
        while pending:
            event = events[pending[0]]
            if event is not None and not event.query():
                if is_coming or len(pending) < MOST_IN_FLIGHT:
                    break
                event.synchronize()
            tokens = self._tokens[pending.popleft()].tolist()
            if any(token in ending for token, ending in zip(tokens, self._ending, strict=False)):
                self._rounds_since = 0
        has_ended = self._rounds_since is not None or self._num_decodes >= self._num_left
        return has_ended or (is_coming and self._is_busy_until_prefill)

    @property
    def _is_busy_until_prefill(self) -> bool:
        """Whether what runs beside the CPU lasts until it has launched a prefill.

        Nothing does on a CPU, nor without overlap: there the prefill is launched when the round
        before has been read.
        """
        runs_beside = self._has_overlap and self._events[0] is not None
        return not runs_beside or len(self._pending) >= MOST_AT_ARRIVAL


def has_message(socket: Any) -> bool:
    """Returns whether a scheduler finds a message in ``socket`` when it looks next.

    Where it is no socket of ZeroMQ, as for what SGLang serves in Rust, nothing is known.
    """
    return isinstance(socket, zmq.Socket) and bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def ending_tokens(req: Request) -> frozenset[int]:
    """Returns the tokens that end an answer.

    As the host knows them (sglang 0.5.23 schedule_batch.py:Req._check_token_based_finish).
    """
    params, tokenizer = req.sampling_params, req.tokenizer
    if params.ignore_eos:
        return frozenset()
    found = {*(params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if tokenizer is not None:
        found |= {tokenizer.eos_token_id, *(tokenizer.additional_stop_token_ids or ())}
    return frozenset(found)


def tokens_left(reqs: Sequence[Request]) -> int:
    """Returns the fewest tokens that a request may have beside those that the scheduler knows."""
    left = NO_LIMIT
    for req in reqs:
        limit = req.sampling_params.max_new_tokens
        if limit is not None:
            left = min(left, limit - len(req.output_ids))
    return left
