"""Who is in a batch and how much context it has, from what the scheduler knows on the CPU.

A request id names no row: several tokenizer workers let two running requests have the same one, and
a request that is retracted comes back under its own with other KV. A row of the host's request pool
and the number of times that row was given away name one (sglang 0.5.23 mem_cache/memory_pool.py:
ReqToTokenPool.req_generation).

Lengths on the device are not read: where no attention backend needs them on the CPU (FA3, Triton)
the host does not publish them (sglang 0.5.23 managers/overlap_utils.py:resolve_seq_lens_cpu). What
it has committed per request is there on every backend. Under the overlap schedule it lacks the
tokens of the round in flight.
"""

from typing import Any


def row_keys(batch: Any) -> tuple[int, ...]:
    """Returns one number per row of ``batch`` that no other running request has: [bs]."""
    rows, generation = batch.req_pool_indices_cpu, batch.req_to_token_pool.req_generation
    return tuple(rows.add(generation[rows], alpha=len(generation)).tolist())


def row_key(req_to_token_pool: Any, row: int) -> int:
    """Returns the number that `row_keys` gives the request that holds ``row``."""
    generation = req_to_token_pool.req_generation
    return row + int(generation[row]) * len(generation)


def context_lengths(batch: Any) -> list[int]:
    """Returns the tokens with KV of every request of a decode batch: [bs]."""
    return [req.kv.kv_committed_len for req in batch.reqs]


def context_tokens(batch: Any) -> tuple[int, int]:
    """Returns the tokens with KV of a decode batch: of all its requests, and of the longest."""
    lengths = context_lengths(batch)
    return sum(lengths), max(lengths)
