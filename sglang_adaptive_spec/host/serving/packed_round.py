"""A round that verifies another number of drafts per request, packed without gaps.

All requests draft as deep as the tier, so the window of each has ``width`` tokens: the root and its
drafts. `Plan.verify_lens` says how many of them the target verifies. The host's DSPARK verifies
such rows already; hooks on the two functions around the target's forward lend that to chains:

    window [bs, width] --pack--> [tokens] --target--> logits [tokens, V] --unpack--> [bs, width, V]
    the host samples --> accepted tokens --cap--> at most verify_lens

Whether a draft of a chain holds depends on what came before it alone. So the last verified token,
or the first that does not hold, is followed by the token that the target chose there, as in a round
of so many steps. What is behind it in the window was never verified: its logits are zero, and what
the host made of them is cut off. Before and after the target everything stays as wide as the tier.

(sglang 0.5.23 speculative/: eagle_worker_common.py:run_eagle_verify, dflash_info.py,
ragged_verify.py)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

from sglang_adaptive_spec.host.attention.flashinfer.windows import places_in_windows
from sglang_adaptive_spec.host.batch import Batch
from sglang_adaptive_spec.host.drafters.confidences import Confidences
from sglang_adaptive_spec.host.engine import HostEngine
from sglang_adaptive_spec.host.hooks import hook_now
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.serving.first_drafts import CopiedConfidences, FirstDrafts
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.acceptance.confidence import LEAST
from sglang_adaptive_spec.tiers import Plan


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where the verified tokens of a batch stand."""

    verify_lens: torch.Tensor  # [bs] int32
    places: torch.Tensor  # [tokens] int64, in windows of [bs, width]
    lasts: torch.Tensor  # [bs] int64, places of the last tokens of each row
    nexts: torch.Tensor  # [bs] int64, the places behind them, where the window goes on
    layout: RaggedVerifyLayout  # the host's words for it

    @classmethod
    def of(cls, verify_lens: Sequence[int], width: int, device: str) -> "PackedLayout":
        """Returns the packing of windows of ``width`` tokens; its copy does not wait."""
        lens = torch.tensor(verify_lens)
        starts = torch.arange(0, len(verify_lens) * width, width)
        lasts = starts + lens - 1
        places = (torch.arange(width) < lens.unsqueeze(1)).flatten().nonzero().flatten()
        num_tokens, parts = len(places), (lens, places, lasts, lasts + (lens < width))
        at_once = _to_device(torch.cat(parts), device).split([len(part) for part in parts])
        lens, places, lasts, nexts = at_once
        layout = _layout(lens, num_tokens, list(verify_lens))
        return cls(layout.verify_lens, places, lasts, nexts, layout)

    @classmethod
    def on_device(cls, lens: torch.Tensor, num_tokens: int, width: int) -> "PackedLayout":
        """Returns the packing of lengths that the CPU does not know: [bs] int64; their sum."""
        bounds = torch.nn.functional.pad(lens.cumsum(0), (1, 0))
        places = places_in_windows(bounds, num_tokens, width)
        lasts = torch.arange(0, len(lens) * width, width, device=lens.device) + lens - 1
        layout = _layout(lens, num_tokens, None)
        return cls(layout.verify_lens, places, lasts, lasts + (lens < width), layout)


def _layout(lens: torch.Tensor, num_tokens: int, on_cpu: list[int] | None) -> RaggedVerifyLayout:
    return RaggedVerifyLayout._assemble_device(
        verify_lens=lens.to(torch.int32),
        graph_num_tokens=num_tokens,
        verify_lens_cpu=on_cpu,
        total_verify_tokens=num_tokens,
    )


class PackedRounds:
    """Makes the packed rounds of a server; a packing is kept as long as lengths stay."""

    def __init__(self, engine: HostEngine, hidden_mode: CaptureHiddenMode) -> None:
        self._engine, self.hidden_mode = engine, hidden_mode
        most = engine.options.startup_tier.num_draft_tokens
        self.offsets = torch.arange(most, device=engine.device)
        self._key: tuple[tuple[int, ...], int] | None = None
        self._packing: PackedLayout | None = None
        self.confidences: Confidences | None = None  # in the newest drafts, where they are told
        self._weights: tuple[tuple[float, ...], torch.Tensor] | None = None

    @staticmethod
    def install() -> None:
        """Hooks what the host does around the target's forward; other rounds pass through."""
        hook_now({"eagle_prepare_for_verify": prepare_packed, "eagle_sample": sample_packed})

    def begin(self, plan: Plan, launched: Round | None = None) -> "PackedRound":
        """Returns the round of the host that verifies so many tokens of each request's window.

        ``launched`` is the loop's, if a controller chose.
        """
        lens, width = plan.verify_lens, plan.tier.num_draft_tokens
        assert lens is not None, "the caller checked this"
        if plan.by_confidence is not None:
            confidences = self.confidences
            if confidences is not None and confidences.holds(len(lens), width - 1):
                return PackedRound(self, None, plan, launched)
            plan = plan._replace(by_confidence=None)  # requests have left since: those expected
        key = lens, width
        if self._packing is None or key != self._key:
            self._packing, self._key = PackedLayout.of(*key, self._engine.device), key
        return PackedRound(self, self._packing, plan, launched)

    def weights(self, weights: tuple[float, ...]) -> torch.Tensor:
        """Returns slope and intercepts on the device; copied when they change."""
        if self._weights is None or self._weights[0] != weights:
            self._weights = weights, _to_device(torch.tensor(weights), self._engine.device)
        return self._weights[1]


class PackedRound:
    """A packed round in progress: what the host's round calls around the target's forward."""

    def __init__(
        self,
        rounds: PackedRounds,
        packing: PackedLayout | None,
        plan: Plan,
        launched: Round | None,
    ) -> None:
        """Takes where tokens stand, if the CPU knows: else `choose` comes before all others."""
        self._rounds, self._known, self._plan = rounds, packing, plan
        self._width, self._launched = plan.tier.num_draft_tokens, launched
        self._chosen: CopiedConfidences | None = None

    def kept(self) -> Sequence[int]:
        """Returns the drafts per row that are verified; once the round's result is on the CPU."""
        chosen = None if self._chosen is None else self._chosen.kept()
        return chosen or [length - 1 for length in self._plan.verify_lens or ()]

    @property
    def _packing(self) -> PackedLayout:
        assert self._known is not None, "the draft's confidence did not choose"
        return self._known

    def choose(self) -> None:
        """Gives the round's tokens to the likeliest drafts, where confidence decides."""
        plan, confidences = self._plan, self._rounds.confidences
        if plan.by_confidence is None or confidences is None:
            return
        assert plan.verify_lens is not None, "the caller checked this"
        num_rows, num_tokens = len(plan.verify_lens), sum(plan.verify_lens)
        confidence = confidences.of(num_rows, plan.tier.num_steps)
        weights = self._rounds.weights(plan.by_confidence)
        lens = confidences.agreed(chosen_lengths(confidence, weights, num_tokens))
        self._known = PackedLayout.on_device(lens, num_tokens, self._width)
        self._chosen = CopiedConfidences.of(confidence, lens)
        if self._launched is not None:
            self._launched.confidences = self._chosen

    def prepare(
        self, verify_input: Any, req_to_token: torch.Tensor, batch: Batch, target: Any
    ) -> Any:
        """Prepares the target's forward of the packed tokens, as the host does for DSPARK.

        Args:
            verify_input: Of the host: tokens and positions of whole windows.
            req_to_token: [rows, slots] of the target.
            batch: Its slots are those of whole windows afterwards: the draft-extend writes them.
            target: The worker of the target.

        Returns:
            The forward's batch, and whether a graph runs it.
        """
        places = self._packing.places
        ahead = batch.seq_lens.unsqueeze(1) + self._rounds.offsets[: self._width]
        slots = req_to_token[batch.req_pool_indices.unsqueeze(1), ahead].to(torch.int64).flatten()
        batch.out_cache_loc = slots[places]
        packed = DFlashVerifyInput(
            draft_token=verify_input.draft_token[places],
            positions=verify_input.positions[places],
            draft_token_num=self._width,
            capture_hidden_mode=self._rounds.hidden_mode,
            ragged_verify_layout=self._packing.layout,
        )
        forward_batch, is_in_graph = packed.prepare_for_verify(batch, target)
        if is_in_graph:
            forward_batch.mark_forward_metadata_ready()
        batch.out_cache_loc, batch.spec_info = slots, verify_input
        return forward_batch, is_in_graph

    def unpack(self, logits_output: Any) -> None:
        """Puts the target's outputs where the tokens stand in whole windows; zeros elsewhere."""
        logits_output.next_token_logits = self._unpacked(logits_output.next_token_logits)
        if logits_output.hidden_states is not None:
            logits_output.hidden_states = self._unpacked(logits_output.hidden_states)

    def cap(
        self, accept_lens: torch.Tensor, accept_index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes away what was accepted beyond the verified tokens.

        Args:
            accept_lens: [bs] tokens that a round gives, the target's own included.
            accept_index: [bs, width] of the window, -1 behind those.
        """
        lens = torch.minimum(accept_lens, self._packing.verify_lens)
        is_behind = self._rounds.offsets[: accept_index.shape[1]] >= lens.unsqueeze(1)
        return lens, accept_index.masked_fill(is_behind, -1)

    def compare_next(self, drafted: torch.Tensor, predicted: torch.Tensor) -> None:
        """Compares the first draft that was not verified with what the target chose there.

        Args:
            drafted: [bs * width] tokens of whole windows.
            predicted: [bs * width] of the target, behind each of them.
        """
        if self._launched is None:
            return
        is_correct = next_draft_correct(self._packing, drafted, predicted)
        self._launched.first_drafts = FirstDrafts.copied(is_correct)

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        num_tokens = self._width * len(self._packing.verify_lens)
        windows = packed.new_zeros((num_tokens, *packed.shape[1:]))
        return windows.index_copy_(0, self._packing.places, packed)


def chosen_lengths(
    confidence: torch.Tensor, weights: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """Returns the tokens of each row that are worth most: [rows] int64; all are ``num_tokens``.

    Args:
        confidence: [rows, steps] of the draft.
        weights: Slope, and intercepts by depth (policy/acceptance/confidence.py).
        num_tokens: Verified in all, the roots included.
    """
    num_rows, num_steps = confidence.shape
    logits = torch.logit(confidence, LEAST).mul_(weights[0]).add_(weights[1 : 1 + num_steps])
    survival = logits.sigmoid_().cumprod(1)
    # Counted by row: whichever of equal survivals are taken, a row's first drafts are meant.
    likeliest = survival.flatten().topk(num_tokens - num_rows, sorted=False).indices
    lens = torch.ones(num_rows, dtype=torch.int64, device=confidence.device)
    rows = likeliest.div_(num_steps, rounding_mode="floor")
    return lens.scatter_add_(0, rows, torch.ones_like(rows))


def next_draft_correct(
    packing: PackedLayout, drafted: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """Returns per row whether the first unverified draft is the target's token: [bs] bool."""
    return drafted[packing.nexts] == predicted[packing.lasts]


def prepare_packed(
    prepare: Callable[..., Any],
    verify_input: Any,
    req_to_token_pool: Any,
    batch: Batch,
    target_worker: Any,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around ``eagle_prepare_for_verify``: a packed round has a forward of its own."""
    packed = current_round().packed
    if packed is None:
        return prepare(verify_input, req_to_token_pool, batch, target_worker, *args, **kwargs)
    return packed.prepare(verify_input, req_to_token_pool.req_to_token, batch, target_worker)


def sample_packed(
    sample: Callable[..., Any],
    verify_input: Any,
    batch: Batch,
    logits_output: Any,
    *args: object,
    **kwargs: object,
) -> Any:
    """Around ``eagle_sample``: of the windows that the host samples the verified part counts."""
    packed = current_round().packed
    if packed is None:
        return sample(verify_input, batch, logits_output, *args, **kwargs)
    packed.unpack(logits_output)
    predict, *accepted = sample(verify_input, batch, logits_output, *args, **kwargs)
    packed.compare_next(verify_input.draft_token, predict)
    return (predict, *packed.cap(*accepted))


def _to_device(values: torch.Tensor, device: str) -> torch.Tensor:
    """Copies without waiting."""
    return values if device == "cpu" else values.pin_memory().to(device, non_blocking=True)
