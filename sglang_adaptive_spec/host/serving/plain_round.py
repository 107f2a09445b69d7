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

from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput

from sglang_adaptive_spec.host.batch import Batch, DraftInput
from sglang_adaptive_spec.host.drafters.drafter import CatchUps, Drafter
from sglang_adaptive_spec.host.engine import HostEngine, ModelRunner
from sglang_adaptive_spec.host.host_round import current_round
from sglang_adaptive_spec.host.serving.next_slots import NextSlots
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.tiers import CatchUp


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


class FirstDrafts:
    """Whether the draft's next proposal would have held: known now and then, for free."""

    def __init__(self, is_correct: torch.Tensor, is_known: Sequence[bool]) -> None:
        self._is_correct, self._is_known = is_correct, is_known

    def read(self) -> list[bool | None]:
        """Returns the answer per row; the round's result must have been copied to the CPU."""
        rows = zip(self._is_correct.tolist(), self._is_known, strict=True)
        return [correct if known else None for correct, known in rows]


class PlainRounds:
    """Makes the zero-step rounds of a server, and holds what they share."""

    def __init__(self, engine: HostEngine, drafter: Drafter, most_decodes: int) -> None:
        self.target, self.drafter, self.ranks = engine.target, drafter, engine.ranks
        self.most_decodes = most_decodes  # of a round, as far as the host reserves slots
        req_to_token = engine.target_runner.req_to_token_pool.req_to_token
        self.slots = NextSlots(req_to_token, most_decodes)
        self._newest = -1  # the number of the newest round
        self.verify_input = EagleVerifyInput.create_idle_input(
            topk=1, spec_steps=0, num_verify_tokens=1, device=engine.device
        )
        self._accept_lens: dict[int, torch.Tensor] = {}  # by decodes of a round: [most requests]

    def begin(self, launched: Round, on_publish: Callable[..., Any] | None) -> "PlainRound":
        """Returns the round of the host that the controller launched."""
        if launched.number != self._newest + 1:  # others ran in between
            self.slots.forget()
        self._newest, plan = launched.number, launched.plan
        plain = PlainRound(self, launched.batch.requests, launched.debts, plan.catch_up)
        plain.launched, plain.num_decodes = launched, plan.num_decodes
        plain.on_publish = on_publish
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

    def accepted(self, num_decodes: int, size: int) -> torch.Tensor:
        """Returns the tokens that a round gives each request: [size] int32, on the CPU.

        The host reads them there; as they are known, nothing has to be copied from the device.
        """
        lens = self._accept_lens.get(num_decodes)
        if lens is None or len(lens) < size:  # once for each number of decodes
            most = max(size, self.target.model_runner.max_running_requests)
            lens = torch.full((most,), num_decodes, dtype=torch.int32)
            self._accept_lens[num_decodes] = lens
        return lens[:size]


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
        draft_input, num_decodes = self._draft_input, self.num_decodes
        assert draft_input is not None, "the host asks for a verify input first"
        lens_after = batch.seq_lens + num_decodes
        if self.on_publish is not None:
            self.on_publish(lens_after)
        tokens, columns, keep_alive = draft_input.bonus_tokens, [], [draft_input]
        for left in reversed(range(num_decodes)):
            lens = batch.seq_lens + 1 if left else lens_after
            places = self._rounds.slots.look_up(batch.req_pool_indices, batch.seq_lens, left + 1)
            batch.out_cache_loc = places
            output, forward_batch, tokens = self._decode(batch, tokens, lens, grammar_barrier)
            columns.append(tokens)
            keep_alive.append(forward_batch)
        self._compare_first_drafts(draft_input, columns[0])
        next_input = EagleDraftInput(bonus_tokens=tokens)
        for name in self._rounds.drafter.relayed:
            setattr(next_input, name, getattr(draft_input, name))
        current_round().relayed = draft_input.topk_index
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=tokens if num_decodes == 1 else torch.stack(columns, dim=1).flatten(),
            can_run_cuda_graph=output.can_run_cuda_graph,
            speculative_num_draft_tokens=1,
            next_draft_input=next_input,
            accept_lens=self._rounds.accepted(num_decodes, len(tokens)),
            new_seq_lens=lens_after,
            routed_experts_output=output.routed_experts_output,
            indexer_topk_output=output.indexer_topk_output,
            extra_keep_alive_refs=keep_alive,
            speculative_output_stride=num_decodes,
            num_non_draft_tokens_per_req=num_decodes,
        )

    def draft_extend(self, extend: Callable[..., Any], batch: Batch, result: object) -> None:
        """Catches the draft up through the host's ``extend``, if that is due."""
        if self._catch_up is not CatchUp.NONE:
            self._catch_ups.extend(self._catch_up, extend, batch, result, self._debts)

    # -- pieces of a round --

    def _decode(
        self,
        batch: Batch,
        tokens: torch.Tensor,
        lens_after: torch.Tensor,
        grammar_barrier: Callable[[], None] | None,
    ) -> tuple[Any, ForwardBatch, torch.Tensor]:
        """Runs one decode of ``tokens``, which moves the batch on by one token."""
        self._prepare(batch, tokens, lens_after)
        is_idle = batch.forward_mode.is_idle()
        target, runner = self._rounds.target, self._rounds.target.model_runner
        forward_batch = ForwardBatch.init_new(
            batch,
            runner,
            capture_hidden_mode=self._rounds.drafter.hidden_mode,
            return_hidden_states_before_norm=False,
        )
        forward_batch.spec_info = batch.spec_info = None
        runner.shared_read_done_event = None  # only this forward's own mark may be waited on
        output = target.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        logits_output = output.logits_output
        if batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        if is_idle:  # beside other ranks' requests
            return output, forward_batch, tokens
        next_tokens = self._sample(batch, forward_batch, logits_output)
        self._catch_ups.keep(logits_output.hidden_states, next_tokens)
        return output, forward_batch, next_tokens

    def _prepare(self, batch: Batch, bonus_tokens: torch.Tensor, lens_after: torch.Tensor) -> None:
        """Turns the batch into the decode batch that it would be without speculation."""
        if not batch.forward_mode.is_idle():
            batch.forward_mode = ForwardMode.DECODE
        # Positions of multimodal models follow from these, too; else the host would compute them
        # from lengths on the CPU (sglang 0.5.23 forward_batch_info.py:
        # compute_spec_mrope_positions).
        batch.spec_info = SimpleNamespace(
            positions=batch.seq_lens.to(torch.int64),
            # Padding among experts scales by these (spec_info.py:spec_scale_global_num_tokens).
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )
        batch.input_ids = bonus_tokens.to(torch.int64)
        batch.seq_lens = lens_after
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum = None  # computed anew from the lengths

    def _sample(
        self, batch: Batch, forward_batch: ForwardBatch, logits_output: Any
    ) -> torch.Tensor:
        """Samples as without speculation; logprobs take the shape that spec results have."""
        runner = self._rounds.target.model_runner
        # Greedy tokens are int64 already; sampling kernels return int32.
        tokens = runner.sample(logits_output, forward_batch).to(torch.int64)
        if not batch.sampling_info.is_all_greedy:
            self._rounds.ranks.broadcast_tokens(tokens)
        if batch.return_logprob:
            logprobs = logits_output.next_token_logprobs
            logits_output.next_token_logprobs = logprobs.unsqueeze(1)  # [bs, 1]
        return tokens

    def _compare_first_drafts(self, draft_input: DraftInput, tokens: torch.Tensor) -> None:
        """Compares what the draft would propose with what the target chose, where it is level."""
        if self.launched is None or not self._debts:
            return
        is_known = self._catch_ups.were_level(self._debts, self.num_decodes)
        if any(is_known):
            drafts = self._rounds.drafter.first_drafts(draft_input)
            if drafts is not None:
                self.launched.first_drafts = FirstDrafts(
                    _to_cpu(first_draft_correct(drafts, tokens)), is_known
                )


def first_draft_correct(drafts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns per row whether the draft's proposal is the target's token: [bs] bool."""
    return drafts == tokens


def _to_cpu(values: torch.Tensor) -> torch.Tensor:
    """Copies without waiting; the host waits for a later copy before it reads a result."""
    if values.device.type == "cpu":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
