"""Zero steps as cheap as no speculation: an ordinary decode forward, and a draft that lags behind.

The host's zero-step round verifies a tree of one node, samples through the verify kernels and runs
a draft-extend, each with a plan that waits for the GPU: a quarter of the throughput of no
speculation on an H200 (slice-h200.json, plain_over_none). Here the target runs
the decode forward that it would run without speculation, the next lengths are published before
that forward (each request gains exactly one token), and the draft-extend is put off; see
host/drafters/catch_up.py.

The host's own round calls the pieces: `trivial_verify_input`, `verify` and `draft_extend` replace
its steps while a `PlainRound` is in progress (host_round.py).
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput

from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.drafter import CatchUps, EagleRoundDrafter
from sglang_adaptive_spec.host.engine import HostEngine, ModelRunner
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.serving.first_drafts import FirstDrafts
from sglang_adaptive_spec.host.serving.next_slots import NextSlots
from sglang_adaptive_spec.host.serving.plain_decodes import PlainDecodes
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.tiers import CatchUp

logger = logging.getLogger(__name__)


def plain_round_unsupported_reason(target_runner: ModelRunner) -> str | None:
    """Returns why zero-step rounds must stay the host's for this model, or None."""
    if mambaish_config(target_runner.model_config) is not None:
        return "the model keeps recurrent state, which verify commits in its own way"
    if target_runner.model_config.is_encoder_decoder:
        return "encoder-decoder models prepare decode rounds in the scheduler"
    if target_runner.hisparse_coordinator is not None:
        return "HiSparse prepares decode rounds in the scheduler"
    if target_runner.ngram_embedding_manager.enabled:
        return "n-gram embeddings prepare decode rounds in the scheduler"
    return None


def has_plain_rounds(engine: HostEngine) -> bool:
    """Returns whether zero-step rounds are ours: the ladder has them, and the model allows them."""
    if 0 not in engine.options.config.candidate_steps:
        return False
    reason = plain_round_unsupported_reason(engine.target_runner)
    if reason is not None:
        logger.warning("ADAPTIVE_EAGLE keeps the host's zero-step round: %s.", reason)
    return reason is None


class PlainRounds:
    """Makes the zero-step rounds of a server, and holds what they share."""

    def __init__(self, engine: HostEngine, drafter: EagleRoundDrafter, most_decodes: int) -> None:
        self.drafter = drafter
        self.decodes = PlainDecodes(engine, drafter.hidden_mode, most_decodes)
        self._newest = -1  # the number of the newest round
        self.verify_input = EagleVerifyInput.create_idle_input(
            topk=1, spec_steps=0, num_verify_tokens=1, device=engine.device
        )

    @property
    def slots(self) -> NextSlots:
        """Where the next decodes go."""
        return self.decodes.slots

    def begin(
        self,
        launched: Round,
        on_publish: Callable[..., Any] | None,
        on_cut: Callable[[int], None],
    ) -> "PlainRound":
        """Returns the round of the host that the controller launched."""
        if launched.number != self._newest + 1:  # others ran in between
            self.slots.forget()
        self._newest, plan = launched.number, launched.plan
        plain = PlainRound(self, launched.batch.requests, launched.debts, plan.catch_up)
        plain.launched, plain.num_decodes = launched, plan.num_decodes
        plain.on_publish, plain.on_cut = on_publish, on_cut
        return plain

    def begin_alone(self, size: int, is_catch_up: bool) -> "PlainRound":
        """Returns a round of ``size`` rows that no request owns: start-up measurements."""
        self.slots.forget()
        catch_up = CatchUp.WHOLE if is_catch_up else CatchUp.NONE
        return PlainRound(self, range(size), [0] * size, catch_up)

    def begin_catch_up(self, requests: Sequence[Hashable], debts: Sequence[int]) -> "PlainRound":
        """Returns a round without its target: the draft is caught up on ``debts``, no more."""
        plain = PlainRound(self, requests, debts, CatchUp.WHOLE)
        plain.has_target = False
        return plain


class PlainRound:
    """A zero-step round in progress: what the host's round calls in place of its own steps."""

    def __init__(
        self,
        rounds: PlainRounds,
        requests: Sequence[Hashable],
        debts: Sequence[int],
        catch_up: CatchUp,
    ) -> None:
        self._rounds = rounds
        assert rounds.drafter.catch_ups is not None, "zero-step rounds are prepared with them"
        self._catch_ups: CatchUps = rounds.drafter.catch_ups
        self._catch_ups.begin(requests)
        self._debts, self._catch_up = debts, catch_up
        self.num_decodes = 1
        self.on_publish: Callable[..., Any] | None = None
        self.on_cut: Callable[[int], None] | None = None
        self.launched: Round | None = None  # the loop's, if a controller chose
        self.has_target = True
        self._draft_input: DraftInput | None = None

    # -- called by the host's round, in this order --

    def trivial_verify_input(self, batch: Batch) -> Any:
        """Stands in for the one-node tree, which a plain round has no use for."""
        self._draft_input = batch.spec_info
        return self._rounds.verify_input

    def verify(
        self, batch: Batch, grammar_barrier: Callable[[], None] | None
    ) -> GenerationBatchResult:
        """Runs the target on the bonus tokens and samples the next ones, as often as asked."""
        if not self.has_target:
            return GenerationBatchResult(
                new_seq_lens=batch.seq_lens, next_draft_input=EagleDraftInput()
            )
        draft_input = self._draft_input
        assert draft_input is not None, "the host asks for a verify input first"
        decoded = self._rounds.decodes.run(
            batch,
            draft_input.bonus_tokens,
            self.num_decodes,
            self.on_publish,
            grammar_barrier,
            self._catch_ups.keep,
            on_cut=None if self.on_cut is None else self._cut_short,
        )
        decoded.keep_alive.append(draft_input)
        self._compare_first_drafts(draft_input, decoded.columns[0])
        next_input = EagleDraftInput(bonus_tokens=decoded.columns[-1])
        for name in self._rounds.drafter.relayed:
            setattr(next_input, name, getattr(draft_input, name))
        current_round().relayed = draft_input.topk_index
        return self._rounds.decodes.result(decoded, next_input)

    def draft_extend(self, extend: Callable[..., Any], batch: Batch, result: object) -> None:
        """Catches the draft up through the host's ``extend``, if that is due."""
        if self._catch_up is not CatchUp.NONE:
            self._catch_ups.extend(self._catch_up, extend, batch, result, self._debts)

    def _cut_short(self, num_decodes: int) -> None:
        """Takes note that fewer decodes ran: so many tokens less are there to catch up on."""
        assert self.on_cut is not None, "nobody else may cut it short"
        num_missing = self.num_decodes - num_decodes
        self._debts = [debt - num_missing for debt in self._debts]
        self.num_decodes = num_decodes
        self.on_cut(num_decodes)

    def _compare_first_drafts(self, draft_input: DraftInput, tokens: torch.Tensor) -> None:
        """Compares what the draft would propose with what the target chose, where it is level."""
        if self.launched is None or not self._debts:
            return
        is_known = self._catch_ups.were_level(self._debts, self.num_decodes)
        if any(is_known):
            drafts = self._rounds.drafter.first_drafts(draft_input)
            if drafts is not None:
                is_correct = first_draft_correct(drafts, tokens)
                self.launched.first_drafts = FirstDrafts.copied(is_correct, is_known)


def first_draft_correct(drafts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns per row whether the draft's proposal is the target's token: [bs] bool."""
    return drafts == tokens
