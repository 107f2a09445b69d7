"""The host's NGRAMWorker with a width per decode round.

Look-ups, the table and what rounds hand on stay as wide as the widest tier; a round verifies as
many nodes as its tier says, the likeliest. As long as drafting pays on the whole, the table is
asked before a round is planned: the more it has, the wider the round. A stay at zero steps is
decodes without speculation: no look-up, and no copy to the CPU that waits for the round before.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.speculative.spec_utils import record_stream_for_v2_verify

from sglang_adaptive_spec.host.attention.lengths import decodes_without
from sglang_adaptive_spec.host.batch import Batch, rows_of_extend
from sglang_adaptive_spec.host.drafters.ngram import NgramDrafter
from sglang_adaptive_spec.host.host_round import open_round
from sglang_adaptive_spec.host.server_args import Scheduler
from sglang_adaptive_spec.host.serving.adaptive_worker import AdaptiveWorker
from sglang_adaptive_spec.host.serving.plain_decodes import PlainDecodes
from sglang_adaptive_spec.host.serving.plain_round import has_plain_rounds
from sglang_adaptive_spec.tiers import PLAIN_TIER, Plan

# Zero-step decodes between two times that the table learns what they wrote. A choice.
LEARN_EVERY = 16
PADDING = 0  # the token of unused nodes, which are children of the root


class Trees:
    """What a table has for the requests of a batch: a tree each, padded to the same size.

    Args:
        drafts: [bs, nodes] tokens.
        mask: [bs, nodes, nodes] each node's ancestors, itself included.
    """

    def __init__(self, drafts: Any, mask: Any) -> None:
        self.drafts, self.mask = drafts, mask

    @cached_property
    def depths(self) -> Any:
        """How deep each node is; 0: the root, and padding. [bs, nodes]."""
        num_above = self.mask.sum(axis=2) - 1
        is_leaf_of_root = (num_above == 1) & (self.mask.sum(axis=1) == 1)
        return np.where(is_leaf_of_root & (self.drafts == PADDING), 0, num_above)

    @property
    def in_a_row(self) -> list[int]:
        """How many drafts each tree has in a row."""
        deepest: list[int] = self.depths.max(axis=1).tolist()
        return deepest


class AdaptiveNgramWorker(AdaptiveWorker, NGRAMWorker):
    """Chooses, activates and observes around the host's rounds."""

    drafter: NgramDrafter
    draft_token_num: int  # nodes that a round verifies, the root among them
    max_trie_depth: int  # tokens of a request that are put, and that a look-up matches
    prev_token_ids: list[int]  # what the round before accepted, once a look-up has fetched it
    prev_accept_lens: list[int]
    _prev_decode_rids: set[str]  # of requests that the table keeps a match of

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.full_width = self.engine.options.startup_tier.num_draft_tokens
        self._tells_found = self.drafter.finds_alike
        self._is_alone = False  # a round that nobody waits for
        self._num_unlearned = 0  # zero-step decodes since the table was told what is written
        self._trees: Trees | None = None  # of the round to come, if the table was asked
        self._found: list[int] | None = None  # drafts in a row that it has
        self._kept: list[int] | None = None  # those of them that are verified

    # -- until the server is ready --

    def init_cuda_graphs(self, *args: object, **kwargs: object) -> None:
        """Takes the start-up tier as the target has captured it."""
        self._prepare_decodes()
        self._tier_builder.register(None)
        super().init_cuda_graphs(*args, **kwargs)

    def _prepare_decodes(self) -> None:
        """Makes zero-step rounds, where the ladder and the model have them."""
        if has_plain_rounds(self.engine):
            self.most_decodes = self.full_width
            self._decodes = PlainDecodes(self.engine, self.drafter.hidden_mode, self.most_decodes)

    def connect(self, scheduler: Scheduler) -> None:
        """Has zero-step rounds begin before the CPU knows their lengths, where they can."""
        super().connect(scheduler)
        backend = self._target_worker.model_runner.attn_backend
        view = resolved_view(self.server_args)
        if self._decodes is not None and decodes_without(view, backend):
            self._late_lengths.ask_only_to_verify()

    def _run_alone(self, plan: Plan, batch: Batch) -> None:
        open_round(())
        if self._decodes is not None and plan.tier == PLAIN_TIER:
            self._decodes.slots.forget()
            self._decode(self._decodes, batch, 1, None)
            return
        self._is_alone = True
        try:
            super().forward_batch_generation(batch)
        finally:
            self._is_alone = False

    # -- a round --

    def forward_batch_generation(
        self,
        batch: Batch,
        on_publish: Callable[..., Any] | None = None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Puts the batch's tier in force, then runs the host's round, or decodes."""
        mode, decodes = batch.forward_mode, self._decodes
        open_round(batch.reqs)
        if not mode.is_decode():
            if decodes is not None:
                decodes.slots.forget()
            self.controller.before_extend(*rows_of_extend(batch))
            return super().forward_batch_generation(batch, on_publish, *args, **kwargs)
        described, self._trees, self._found, self._kept = self._describe(batch), None, None, None
        asks_first = decodes is not None and self._tells_found
        if asks_first and self.controller.wants_found(described):
            self._trees = self._look_up(batch)
            described = described._replace(found=self._found)
        launched = self.controller.before_decode(described)
        if decodes is not None and launched.tier == PLAIN_TIER:
            result = self._decode(decodes, batch, launched.plan.num_decodes, on_publish)
            if self._trees is None:
                self._learn_now_and_then(batch, launched.plan.num_decodes)
            else:
                self._update_ngram_corpus(batch)
            return result
        if decodes is not None:
            decodes.slots.forget()
        if batch.seq_lens_cpu is None:
            self._late_lengths.fetch(batch)
        result = super().forward_batch_generation(batch, on_publish, *args, **kwargs)
        launched.found, launched.kept = self._found, self._kept
        self._hand_on(result.next_draft_input)
        return result

    def _prepare_draft_tokens(
        self, batch: Batch, *args: object, **kwargs: object
    ) -> tuple[Any, Any]:
        """Looks up the widest tree; returns as many nodes as the tier has, and their mask."""
        width, full, size = self.draft_token_num, self.full_width, len(batch.reqs)
        if self._is_alone:
            return made_up_tree(size, width)
        trees = self._trees or self._look_up(batch, *args, **kwargs)
        self._kept = self._found
        if width < full:
            trees = likeliest(trees, width)
            self._kept = trees.in_a_row if self._tells_found else None
        return trees.drafts.flatten(), trees.mask.flatten()

    def _look_up(self, batch: Batch, *args: object, **kwargs: object) -> Trees:
        """Asks the table for all it has."""
        size, full = len(batch.reqs), self.full_width
        with self._looking_up():
            drafts, mask = super()._prepare_draft_tokens(batch, *args, **kwargs)
        trees = Trees(drafts.reshape(size, full), mask.reshape(size, full, full))
        self._found = trees.in_a_row if self._tells_found else None
        # What it keeps of these requests is erased when they are gone (the host: after a verify).
        self._prev_decode_rids |= {req.rid for req in batch.reqs}
        return trees

    def _update_ngram_corpus(self, batch: Batch, *args: object, **kwargs: object) -> None:
        """Puts what was written into the table, unless nobody asked for it."""
        if self._is_alone:
            return
        num_more = self._num_unlearned
        if num_more:  # the last put lacked what the two rounds in flight wrote
            num_more += 2 * self.full_width
        with self._looking_up(num_more):
            super()._update_ngram_corpus(batch, *args, **kwargs)
        self._num_unlearned = 0

    def _learn_now_and_then(self, batch: Batch, num_decodes: int) -> None:
        """Puts into the table what zero-step rounds wrote, as far as the CPU knows it."""
        self._num_unlearned += num_decodes
        if self._num_unlearned >= LEARN_EVERY:
            self.prev_token_ids, self.prev_accept_lens = [], [0] * len(batch.reqs)
            self._update_ngram_corpus(batch)

    @contextlib.contextmanager
    def _looking_up(self, num_more: int = 0) -> Iterator[None]:
        """Has the host use the table as wide as the widest tier is.

        What the round before accepted lies at that stride.

        Args:
            num_more: Tokens of a request that are put beyond those that a look-up matches.
        """
        before = self.draft_token_num, self.max_trie_depth
        self.draft_token_num = self.full_width
        self.max_trie_depth += num_more
        try:
            yield
        finally:
            self.draft_token_num, self.max_trie_depth = before

    def _hand_on(self, next_input: NgramVerifyInput) -> None:
        """Gives what a round hands on the widest tier's stride."""
        missing = self.full_width - self.draft_token_num
        if missing:
            tokens = next_input.accept_tokens.view(-1, self.draft_token_num)
            next_input.accept_tokens = torch.nn.functional.pad(tokens, (0, missing)).flatten()
            next_input.draft_token_num = next_input.num_tokens_per_req = self.full_width
            next_input.num_tokens_for_logprob_per_req = self.full_width

    def _decode(
        self,
        decodes: PlainDecodes,
        batch: Batch,
        num_decodes: int,
        on_publish: Callable[..., Any] | None,
    ) -> Any:
        """Runs a zero-step round."""
        stream = torch.get_device_module(self.device).current_stream()
        record_stream_for_v2_verify(batch, None, stream)
        before = batch.spec_info
        tokens = newest_tokens(before.accept_tokens, before.accept_lens)
        on_cut = self.controller.cut_short if num_decodes > 1 else None  # start-up has none yet
        decoded = decodes.run(batch, tokens, num_decodes, on_publish, on_cut=on_cut)
        decoded.keep_alive.append(before)
        num_decodes = len(decoded.columns)
        accepted = torch.stack(decoded.columns, dim=1).to(before.accept_tokens.dtype)
        rest = self.full_width - num_decodes
        next_input = NgramVerifyInput(
            draft_token_num=self.full_width,
            new_seq_lens=decoded.lens_after,
            accept_tokens=torch.nn.functional.pad(accepted, (0, rest)).flatten(),
            accept_lens=torch.full_like(before.accept_lens, num_decodes),
        )
        return decodes.result(decoded, next_input)


def newest_tokens(accept_tokens: torch.Tensor, accept_lens: torch.Tensor) -> torch.Tensor:
    """Returns the last token that each request accepted: [bs].

    Args:
        accept_tokens: [bs * width], those of a request in a row.
        accept_lens: [bs] how many of them are.
    """
    rows = accept_tokens.view(len(accept_lens), -1)
    return torch.gather(rows, 1, accept_lens[:, None].to(torch.int64) - 1)[:, 0]


def likeliest(trees: Trees, width: int) -> Trees:
    """Returns the ``width`` likeliest nodes of each tree, in their order.

    A node is the less likely the deeper it is and the more better siblings its path has passed by.
    The host numbers nodes level by level and the best of siblings last, then padding (sglang 0.5.20
    to 0.5.23 kernels/jit/csrc/ngram_corpus/result.cpp:fillResult). Of more than 13 siblings, and of
    those that an external corpus brings, the order is another: still a tree, but not the likeliest.
    A node costs more than its parent, so the cheapest ones are a tree.
    """
    mask, num_nodes = trees.mask, trees.drafts.shape[1]
    is_padding = trees.depths == 0
    is_padding[:, 0] = False  # the root
    # Of the root this says the last node, which has no children.
    parents = num_nodes - 1 - np.tril(mask, -1)[:, :, ::-1].argmax(axis=2)
    are_siblings = (parents[:, :, None] == parents[:, None, :]) & ~is_padding[:, None, :]
    num_better = np.triu(are_siblings, 1).sum(axis=2)
    own_cost = np.where(is_padding, num_nodes**2, 1 + num_better)
    costs = (mask * own_cost[:, None, :]).sum(axis=2)
    kept = np.sort(np.argsort(costs, axis=1, kind="stable")[:, :width], axis=1)
    rows = np.take_along_axis(mask, kept[:, :, None], axis=1)
    kept_mask = np.take_along_axis(rows, kept[:, None, :], axis=2)
    narrow = Trees(np.take_along_axis(trees.drafts, kept, axis=1), kept_mask)
    # A draft whose children are cut off may look like padding: told by the whole tree.
    narrow.depths = np.take_along_axis(trees.depths, kept, axis=1)
    return narrow


def made_up_tree(size: int, width: int) -> tuple[Any, Any]:
    """Returns drafts and masks of chains of ``width``: [size * width], [size * width * width]."""
    chain = np.tril(np.ones((width, width), dtype=bool))
    return np.zeros(size * width, dtype=np.int64), np.tile(chain.flatten(), size)
