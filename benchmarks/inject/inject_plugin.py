"""Injects acceptance into a server, for benchmarks only: real forward passes, drawn verdicts.

Whether the draft at an output position is accepted, given that all before it were, is a hash of
(seed, request id, output position) below the request's probability: independent draws, and the
same ones in every arm and at every depth that reaches the position. The probability is in the
request id (benchmarks/inject/acceptance.py).

The host's own switch, SGLANG_SIMULATE_ACC_LEN > 0, calls `generate_simulated_accept_index` after
the real verification (sglang 0.5.21 eagle_utils.py:eagle_sample). It is told no request, so the
batch is taken around `EAGLEWorkerV2.verify`. Every draw of a request is made when it joins the
batch; a round then reads a table by `seq_lens` on the device: no sync, no copy from the host, and
as many kernels as the host's own simulation.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.inject.acceptance import (
    NUM_POSITIONS,
    OURS_ENV,
    SEED_ENV,
    concentration_of,
    probability_of,
)

SIMULATE = "sglang.srt.speculative.spec_utils.generate_simulated_accept_index"
VERIFY = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"
# Our own zero-step rounds verify nothing; they compare one draft now and then.
PLAIN_VERIFY = "sglang_adaptive_spec.host.serving.plain_round.PlainRound.verify"
FIRST_DRAFT = "sglang_adaptive_spec.host.serving.plain_round.first_draft_correct"
# Packed ones compare the first draft of each row that they do not verify.
NEXT_DRAFT = "sglang_adaptive_spec.host.serving.packed_round.next_draft_correct"
# Before the host verifies, the draft's confidence may choose what is verified.
OUR_VERIFY = "sglang_adaptive_spec.host.serving.worker.AdaptiveEagleWorker.verify"
CONFIDENCE = "sglang_adaptive_spec.host.drafters.confidences.Confidences.of"
TELLS_NOTHING = 0.5
# Any id that every model's vocabulary has; the host's own simulation uses the same.
TOKEN_ID = 100
# Deeper than any tier: how many consecutive verdicts the table counts.
MAX_STEPS = 32
# Requests in a batch that draws are kept for: 135 MB.
MAX_REQUESTS = 2048
# Positions behind the limit of new tokens that the rounds in flight at the end may still ask for.
SPARE_POSITIONS = 2 * MAX_STEPS
_MASK = 0xFFFFFFFF
# An offset that no accept index survives.
_REJECTED = -(2**30)


def request_hash(seed: int, request_id: str) -> int:
    """Returns 32 bits for a request."""
    digest = hashlib.blake2b(f"{seed}/{request_id}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def draws(
    probability: torch.Tensor,
    request_hashes: torch.Tensor,
    output_position: torch.Tensor,
    num_positions: int,
) -> torch.Tensor:
    """Returns the verdicts on ``num_positions`` drafts of each request, from a position on.

    Args:
        probability: # [bs] float64, or [bs, num_positions]
        request_hashes: # [bs] int64, 32 bits used
        output_position: # [bs] int64, of the first draft; the first output token has 0
        num_positions: how many positions to draw.

    Returns:
        # [bs, num_positions] bool
    """
    steps = torch.arange(num_positions, device=output_position.device)
    positions = output_position[:, None] + steps
    # Golden-ratio steps keep neighbours apart; then the mixer `lowbias32` of Wellons (2018).
    mixed = (request_hashes[:, None] + positions * 0x9E3779B9) & _MASK
    mixed = mixed ^ (mixed >> 16)
    mixed = (mixed * 0x7FEB352D) & _MASK
    mixed = mixed ^ (mixed >> 15)
    mixed = (mixed * 0x846CA68B) & _MASK
    mixed = mixed ^ (mixed >> 16)
    return mixed < (probability.reshape(len(probability), -1) * 2.0**32).to(torch.int64)


def run_lengths(accepted: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Returns how many consecutive drafts are accepted from each position on.

    Args:
        accepted: # [bs, num_positions + MAX_STEPS] bool
        num_positions: positions to answer for; the rest is looked ahead at.

    Returns:
        # [bs, num_positions] int32, at most MAX_STEPS
    """
    width = accepted.shape[1]
    index = torch.arange(width, device=accepted.device)
    rejected_at = torch.where(accepted, width, index)
    next_rejected = rejected_at.flip(1).cummin(1).values.flip(1)
    lengths = (next_rejected - index).clamp_(max=MAX_STEPS)
    return lengths[:, :num_positions].to(torch.int32).contiguous()


class Verdicts:
    """The draws of every request in the batch, drawn when it joins, read by sequence length."""

    def __init__(
        self,
        seed: int,
        device: torch.device,
        max_requests: int = MAX_REQUESTS,
        num_positions: int = NUM_POSITIONS,
    ) -> None:
        self._seed, self._device, self._num_positions = seed, device, num_positions
        self._runs = torch.zeros(
            (max_requests, num_positions), dtype=torch.int32, device=device
        )  # accepted drafts in a row, by seat and output position before the first draft
        # Chances of single drafts at these positions, once some scatter.
        self._chances: torch.Tensor | None = None
        self._seats: dict[str, int] = {}
        self._free = list(range(max_requests))
        self._request_ids: list[str] = []
        self._starts = torch.empty(0, dtype=torch.int64, device=device)

    def num_correct(self, reqs: Sequence[Any], seq_lens: torch.Tensor) -> torch.Tensor:
        """Returns how many drafts in a row are accepted. # seq_lens [bs] int64 -> [bs] int32"""
        request_ids = [req.rid for req in reqs]
        if request_ids != self._request_ids:
            self._seat(reqs)
            self._request_ids = request_ids
        return self._runs.take(self._starts + seq_lens)

    def chances(self, seq_lens: torch.Tensor, num_steps: int) -> torch.Tensor:
        """Returns those of the drafts of the batch asked about last. # [bs, num_steps] float32"""
        if self._chances is None:
            return torch.full((len(seq_lens), num_steps), TELLS_NOTHING, device=self._device)
        steps = torch.arange(num_steps, device=self._device)
        return self._chances.take((self._starts + seq_lens)[:, None] + steps)

    def _seat(self, reqs: Sequence[Any]) -> None:
        for gone in self._seats.keys() - {req.rid for req in reqs}:
            self._free.append(self._seats.pop(gone))
        new = [req for req in reqs if req.rid not in self._seats]
        if new:
            self._seats.update((req.rid, self._free.pop()) for req in new)
            self._draw(new)
        starts = [
            self._seats[req.rid] * self._num_positions - len(req.origin_input_ids) for req in reqs
        ]
        self._starts = self._to_device(torch.tensor(starts, dtype=torch.int64))

    def _draw(self, reqs: Sequence[Any]) -> None:
        longest = max(req.sampling_params.max_new_tokens for req in reqs)
        num_positions = longest + SPARE_POSITIONS
        if num_positions > self._num_positions:
            raise ValueError(
                f"{longest} new tokens: draws are kept for {self._num_positions} positions."
            )
        chance = [probability_of(req.rid) for req in reqs]
        hashes = [request_hash(self._seed, req.rid) for req in reqs]
        # A round's root is the output token `seq_lens - prompt`; its first draft comes after it.
        first = torch.ones(len(reqs), dtype=torch.int64)
        # On the CPU: thirty kernels for each arrival would bound the arms that inject.
        chances = self._scatter(reqs, chance, hashes, num_positions + MAX_STEPS)
        accepted = draws(
            torch.tensor(chance, dtype=torch.float64) if chances is None else chances,
            torch.tensor(hashes, dtype=torch.int64),
            first,
            num_positions + MAX_STEPS,
        )
        for req, row in zip(reqs, run_lengths(accepted, num_positions), strict=True):
            self._runs[self._seats[req.rid], :num_positions] = self._to_device(row)

    def _scatter(
        self, reqs: Sequence[Any], chance: Sequence[float], hashes: Sequence[int], width: int
    ) -> torch.Tensor | None:
        """Returns the chance of every draft, if those of some request scatter; and keeps them."""
        concentrations = [concentration_of(req.rid) for req in reqs]
        if self._chances is not None:  # of who sat there before
            self._chances[[self._seats[req.rid] for req in reqs]] = TELLS_NOTHING
        if not any(concentrations):
            return None
        if self._chances is None:
            shape = self._runs.shape
            self._chances = torch.full(shape, TELLS_NOTHING, device=self._device)
        found = torch.empty((len(reqs), width), dtype=torch.float64)
        for row, (mean, k, seed) in enumerate(zip(chance, concentrations, hashes, strict=True)):
            if not k:
                found[row] = mean
                continue
            scattered = np.random.default_rng(seed).beta(mean * k, (1 - mean) * k, width)
            found[row] = torch.from_numpy(scattered)
            kept = found[row, : self._num_positions].float()
            self._chances[self._seats[reqs[row].rid], : len(kept)] = self._to_device(kept)
        return found

    def _to_device(self, copied: torch.Tensor) -> torch.Tensor:
        """Copies without waiting for what the device still has to do."""
        if self._device.type == "cpu":
            return copied
        return copied.pin_memory().to(self._device, non_blocking=True)


class Injector:
    """Answers in the place of the target's verdicts."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._batch: Any = None
        self._seq_lens: Any = None  # before the round: # [bs] int64
        self._verdicts: Verdicts | None = None  # once a request is there
        self._offsets: dict[int, torch.Tensor] = {}

    def around_verify(
        self, verify: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Remembers whose drafts a round is about; for the host's rounds and our plain ones."""
        self._batch, self._seq_lens = batch, batch.seq_lens
        try:
            return verify(worker, batch, *args, **kwargs)
        finally:
            self._batch = self._seq_lens = None

    def accept_index(
        self,
        _simulate: Callable[..., Any],
        *,
        accept_index: torch.Tensor,
        predict: torch.Tensor,
        num_correct_drafts: torch.Tensor,
        spec_steps: int,
        **_rest: Any,
    ) -> torch.Tensor:
        """Stands for the host's simulation.

        Args:
            accept_index: # [bs, spec_steps + 1] int32; its first column is the row of the root
            predict: # [bs * num_draft_tokens] int32, written
            num_correct_drafts: # [bs] int32, written
            spec_steps: the depth.

        Returns:
            # [bs, spec_steps + 1] int32: the rows of the accepted path, then -1
        """
        correct = self._num_correct().clamp_(max=spec_steps)
        num_correct_drafts.copy_(correct)
        predict.fill_(TOKEN_ID)
        offsets = self._offsets_of(spec_steps, accept_index.device)
        return (accept_index[:, :1] + offsets.index_select(0, correct)).clamp_(min=-1)

    def first_draft_correct(self, _compare: Callable[..., Any], *_args: Any) -> torch.Tensor:
        """Stands for the comparison of the first draft with the target's token. # [bs] bool"""
        return self._num_correct() > 0

    def confidence(
        self, told: Callable[..., Any], confidences: Any, num_rows: int, num_steps: int
    ) -> torch.Tensor:
        """Stands for what the draft said of its drafts. # [bs, num_steps] float32"""
        if self._batch is None or not self._batch.reqs:
            found: torch.Tensor = told(confidences, num_rows, num_steps)
            return found
        self._num_correct()  # seats whoever is new
        assert self._verdicts is not None
        return self._verdicts.chances(self._seq_lens, num_steps)

    def next_draft_correct(
        self, _compare: Callable[..., Any], packing: Any, *_args: Any
    ) -> torch.Tensor:
        """Stands for the comparison of the first draft that was not verified. # [bs] bool"""
        return self._num_correct() >= packing.verify_lens

    def _num_correct(self) -> torch.Tensor:
        """Returns the accepted drafts of each row, whatever the depth. # [bs] int32"""
        assert self._batch is not None, "the host asks outside of verify"
        if not self._batch.reqs:  # rows of a start-up measurement, which no request owns
            return torch.zeros_like(self._seq_lens, dtype=torch.int32)
        if self._verdicts is None:
            self._verdicts = Verdicts(self._seed, self._seq_lens.device)
        return self._verdicts.num_correct(self._batch.reqs, self._seq_lens)

    def _offsets_of(self, num_steps: int, device: torch.device) -> torch.Tensor:
        """Returns, by accepted drafts, the distance of each path entry from the root."""
        found = self._offsets.get(num_steps)
        if found is None:
            column = torch.arange(num_steps + 1, dtype=torch.int32, device=device)
            found = torch.where(column <= column[:, None], column, _REJECTED).to(torch.int32)
            self._offsets[num_steps] = found
        return found


def register() -> None:
    """Installs the hooks; does nothing in a server that no benchmark told to inject."""
    seed = os.environ.get(SEED_ENV)
    if seed is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    injector = Injector(int(seed))
    HookRegistry.register(VERIFY, injector.around_verify, HookType.AROUND)
    HookRegistry.register(SIMULATE, injector.accept_index, HookType.AROUND)
    if OURS_ENV in os.environ:
        HookRegistry.register(PLAIN_VERIFY, injector.around_verify, HookType.AROUND)
        HookRegistry.register(FIRST_DRAFT, injector.first_draft_correct, HookType.AROUND)
        HookRegistry.register(NEXT_DRAFT, injector.next_draft_correct, HookType.AROUND)
        HookRegistry.register(OUR_VERIFY, injector.around_verify, HookType.AROUND)
        HookRegistry.register(CONFIDENCE, injector.confidence, HookType.AROUND)
