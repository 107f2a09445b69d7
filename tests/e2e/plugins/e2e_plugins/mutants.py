"""Breaks a server on purpose: the identity tests must notice each of these.

Each plants a mistake that a switch of tiers could make, in a server that starts and is healthy.
Mistakes in what the draft catches up on never change the text: the last two are for the test that
compares what rounds accept (tests/e2e/test_zero_steps.py).

What does not serve as a mutant on this host, tried: chain buffers that stay the start-up tier's
(each row begins with the shorter chain, and the stand-in reads row by row), a stale draft backend
(drafts get worse and are refused) and a stale target backend (without graphs it holds no width).
Under NGRAM the host moves what was accepted from the shifted slots to the right ones.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

READY = "sglang.srt.managers.scheduler.Scheduler.get_init_info"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
SHIFT_INTERVAL = 10  # verifies from one shifted one to the next


def shift_kv_slot() -> None:
    """Writes the KV of one request's drafts one slot off, in every tenth verify."""
    HookRegistry.register(FORWARD, _Shift().forward, HookType.AROUND)


class _Shift:
    """Counts the target's verifies; the text of the round itself is right, the next ones read."""

    def __init__(self) -> None:
        self._num_verifies = 0

    def forward(
        self, forward: Callable[..., Any], runner: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if batch.forward_mode.is_target_verify() and not runner.is_draft_worker:
            self._num_verifies += 1
            if self._num_verifies % SHIFT_INTERVAL == 0:
                window = slice(0, batch.spec_info.draft_token_num)
                batch.out_cache_loc[window] = batch.out_cache_loc[window].roll(1)
        return forward(runner, batch, *args, **kwargs)


def delay_chain_buffers() -> None:
    """Activates a tier with the chain buffers of the tier before.

    A deeper tier then finds a shorter chain: on this host the tree's sizes do not match and the
    round fails. It cannot be subtler: a wrong tree of the right size still accepts only what the
    target says.
    """
    _delay_slots("_draft_worker", "_topk1_parents_prealloc", "_topk1_score_indices_prealloc")


def delay_width() -> None:
    """Activates a tier with the worker's number of draft tokens of the tier before.

    Results are read with it as their stride: from the second request of a batch on, the tokens
    of another row come out, and nothing else shows it.
    """
    _delay_slots("", "speculative_num_draft_tokens")


def decode_first_token() -> None:
    """Lets a zero-step round go on from the first token of the round before, not the last."""
    from sglang_adaptive_spec.host.serving import ngram_worker

    newest = ngram_worker.newest_tokens
    ngram_worker.newest_tokens = lambda tokens, lens: newest(tokens, lens.clamp(max=1))


def count_unverified() -> None:
    """Counts what the host accepts of a packed round's window beyond what was verified."""
    from sglang_adaptive_spec.host.serving.packed_round import PackedRound

    PackedRound.cap = lambda _self, *accepted: accepted


def cap_by_neighbours() -> None:
    """Caps rows by their neighbours' lengths, where the device chose them."""
    from sglang_adaptive_spec.host.serving.packed_round import PackedLayout

    of = PackedLayout.on_device.__func__

    def shifted(cls: Any, *args: Any) -> Any:
        right = of(cls, *args)
        return replace(right, verify_lens=right.verify_lens.roll(1))

    PackedLayout.on_device = classmethod(shifted)


def choose_alone() -> None:
    """Lets each rank choose what it verifies by its own draft's confidence."""
    from sglang_adaptive_spec.host.drafters.confidences import Confidences

    Confidences.agreed = lambda _self, lens: lens


def leave_slots_packed() -> None:
    """Lets the draft-extend of a packed round write where its target wrote."""
    from sglang_adaptive_spec.host.serving.packed_round import PackedRound

    prepare = PackedRound.prepare

    def prepare_only(packed: Any, verify_input: Any, rows: Any, batch: Any, target: Any) -> Any:
        prepared = prepare(packed, verify_input, rows, batch, target)
        if batch.reqs:  # else the start would show it, which measures rounds of nobody
            batch.out_cache_loc = batch.out_cache_loc[packed._packing.places]
        return prepared

    PackedRound.prepare = prepare_only


def pack_neighbours_root() -> None:
    """Packs the root of the second row of a batch in the place of its first draft."""
    from sglang_adaptive_spec.host.serving.packed_round import PackedLayout

    of = PackedLayout.of.__func__

    def shifted(cls: Any, lengths: Any, width: int, device: str) -> Any:
        right = of(cls, lengths, width, device)
        if len(lengths) > 1 and lengths[1] > 1:
            right.places[lengths[0] + 1] = width
        return right

    PackedLayout.of = classmethod(shifted)


def skip_backlog_row() -> None:
    """Keeps nothing of the second row of a batch: its catch-ups read what another round left."""
    from sglang_adaptive_spec.host.drafters.backlog import Backlog

    keep = Backlog.keep

    def keep_others(backlog: Any, rows: Any, states: Any, tokens: Any) -> None:
        kept = [idx for idx in range(len(rows)) if idx != 1]
        keep(backlog, rows[kept], states[kept], tokens[kept])

    Backlog.keep = keep_others


def shift_catch_up() -> None:
    """Writes what a catch-up computes one position before where it belongs."""
    from sglang_adaptive_spec.host.drafters.backlog import Backlog

    window = Backlog.window

    def shifted(*args: Any) -> Any:
        right = window(*args)
        return right._replace(positions=(right.positions - 1).clamp(min=0))

    Backlog.window = shifted


def _delay_slots(attribute: str, *names: str) -> None:
    """Makes some slots of ``worker.<attribute>`` (or the worker) lag one activation behind."""

    def delay(info: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
        worker = scheduler.draft_worker
        owner = getattr(worker, attribute) if attribute else worker
        activate = worker.engine.pool.activate
        due = {name: getattr(owner, name) for name in names}

        def activate_late(tier: Any) -> None:
            activate(tier)
            for name, value in due.items():
                due[name] = getattr(owner, name)
                setattr(owner, name, value)

        worker.engine.pool.activate = activate_late
        return info

    HookRegistry.register(READY, delay, HookType.AFTER)
