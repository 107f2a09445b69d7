"""A second drafter: a table says which token follows which. It keeps no KV and never lags behind.

It stands on the seam of `host/drafters` alone. SGLang still makes its EAGLE draft worker and lets
it read prompts; here it neither drafts nor extends.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.stand_in import CREATE_WORKER
from sglang_adaptive_spec.runtime.pool import Place, read_places
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier

SHAPE = ("speculative_num_steps", "topk", "speculative_num_draft_tokens")
TARGET = ("attn_backend", "decode_cuda_graph_runner")


def follower(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns the table's entries: a token is drafted to follow itself, or its neighbour."""
    return torch.where(tokens % 3 == 0, (tokens + 1) % vocab_size, tokens)


class Nothing:
    """What zero-step rounds keep for a table."""

    width, schedule = 1, None

    def begin(self, requests: Sequence[Hashable]) -> None:
        """Needs no rows."""

    def keep(self, hidden_states: torch.Tensor | None, tokens: torch.Tensor) -> None:
        """Keeps nothing."""
        assert hidden_states is None

    def were_level(self, debts: Sequence[int], num_decodes: int) -> list[bool]:
        return [False] * len(debts)

    def extend(
        self, kind: Any, extend: Callable[..., Any], batch: Any, result: Any, debts: Any
    ) -> None:
        """Has no KV to write."""


class TableDrafter:
    """Drafts from the table through the host's verify."""

    relayed = ("topk_p", "topk_index", "hidden_states")
    remark: str | None = None
    reads_requests = False

    def __init__(self, worker: Any, _captures: Any, _startup: Any, _ranks: Any) -> None:
        self._worker, self._draft = worker, worker.draft_worker
        self._runner = worker.target_worker.model_runner
        self.catch_ups: Any = None
        owners = (worker, worker.draft_worker)
        self.places = [Place(owner, name) for owner in owners for name in SHAPE]
        self.places += [Place(self._runner, name) for name in TARGET]
        self._values: tuple[object, ...] = ()
        self._draft.draft = self.draft
        self._draft._draft_extend_for_decode = self.relay

    @property
    def hidden_mode(self) -> Any:
        """It reads none."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        return CaptureHiddenMode.NULL

    def prepare(self, max_batch_size: int, part_size: int, ranks: Any) -> None:
        self.catch_ups = Nothing()

    def first_drafts(self, draft_input: Any) -> None:
        return None

    def build(self, tier: Tier) -> tuple[object, ...]:
        if tier == PLAIN_TIER:
            backend = self._runner._get_attention_backend(init_new_workspace=False)
            return (0, 1, 1, 0, 1, 1, backend, None)
        state = self._worker.build_adaptive_runtime_state(tier.num_steps, tier.num_draft_tokens)
        return (*self._values[:-2], state.target_attn_backend, state.target_graph_runner)

    def building(self, host_state: AbstractContextManager[None]) -> AbstractContextManager[None]:
        @contextmanager
        def remembered() -> Iterator[None]:
            with host_state:
                yield
                self._values = read_places(self.places)

        return remembered()

    def made_up_input(self, size: int) -> Any:
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        made = EagleDraftInput(bonus_tokens=torch.arange(size))
        self._fill(made, size)
        return made

    def draft(self, batch: Any, *_args: Any, **_kwargs: Any) -> Any:
        """In place of the host's ``draft``: a chain of the table's tokens."""
        from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

        steps, token = self._worker.speculative_num_steps, batch.spec_info.bonus_tokens
        chain = []
        for _ in range(steps):
            token = follower(token, self._runner.model_config.vocab_size)
            chain.append(token)
        size = len(batch.spec_info.bonus_tokens)
        parents = torch.arange(-1, steps - 1 if steps > 1 else -1).repeat(size, 1)
        return build_eagle_verify_input(
            batch,
            batch.spec_info,
            parents,
            torch.arange(steps).repeat(size, 1),
            torch.stack(chain, dim=1),
            None,
            target_worker=self._worker.target_worker,
            topk=1,
            num_steps=steps,
            num_draft_tokens=steps + 1,
            tree_mask_mode=self._draft.tree_mask_mode,
            device=self._worker.device,
        )

    def relay(self, batch: Any, result: Any, *_args: Any, **_kwargs: Any) -> None:
        """In place of the host's draft-extend: hands the next round what nobody reads."""
        if result.next_draft_input.topk_index is None:
            self._fill(result.next_draft_input, len(result.accept_lens))

    def _fill(self, draft_input: Any, size: int) -> None:
        from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

        hidden_size, dtype = get_draft_recurrent_hidden_state_spec(self._draft.draft_runner)
        draft_input.topk_p = torch.ones((size, 1))
        draft_input.topk_index = torch.zeros((size, 1), dtype=torch.int64)
        draft_input.hidden_states = torch.zeros((size, hidden_size), dtype=dtype)


def register() -> None:
    """Lets the table draft where EAGLE is asked for."""

    def replace(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
        from sglang_adaptive_spec.host.drafters.registry import DRAFTERS

        DRAFTERS["EAGLE"] = TableDrafter  # type: ignore[assignment]
        return worker_class

    HookRegistry.register(CREATE_WORKER, replace, HookType.AFTER)
