"""Tells the id of each drafted token in the place of its probability, and compares.

/server_info shows as ``e2e_drafts`` of how many drafts the id came back (``told``), for how many
rows that of the first one, which the draft-extend before proposed (``first``), and how many ids are
``wrong``. A prompt's first draft has a probability still. The draft has the target's vocabulary.
"""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from e2e_plugins.forced_confidence import WalkByConfidence, any_batch, shown
from e2e_plugins.stand_in import CREATE_WORKER, take_over

FIRST_ID = 2  # of token 0: no probability
found = dict.fromkeys(("told", "first", "wrong"), 0)


def compare(confidence: torch.Tensor, drafted: torch.Tensor) -> None:
    """Compares [rows, steps] of each."""
    is_id = confidence >= FIRST_ID
    found["told"] += int(is_id.sum())
    found["first"] += int(is_id[:, 0].sum())
    found["wrong"] += int((is_id & (confidence.long() - FIRST_ID != drafted)).sum())
    found["wrong"] += int((~is_id[:, 1:]).sum())  # only first drafts may be a prompt's


def tell_ids(worker_class: Any, *_args: Any, **_kw: Any) -> Any:
    """Puts ids in the place of probabilities; once a process."""
    from sglang_adaptive_spec.host.drafters import confidences, eagle
    from sglang_adaptive_spec.host.serving.packed_round import PackedRound

    choose = PackedRound.prepare
    if getattr(choose, "is_compared", False):
        return worker_class

    def id_of(logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(dim=-1).float() + FIRST_ID

    def prepare(packed: Any, verify_input: Any, *args: Any) -> Any:
        width, rounds = packed._width, packed._rounds
        drafted = verify_input.draft_token.view(-1, width)[:, 1:]
        compare(rounds.confidences.of(*drafted.shape), drafted)
        return choose(packed, verify_input, *args)

    prepare.is_compared = True  # type: ignore[attr-defined]
    PackedRound.prepare = prepare  # type: ignore[method-assign]
    confidences.top_probability = eagle.top_probability = id_of
    return worker_class


def shown_drafts(walk: WalkByConfidence) -> dict[str, Any]:
    """What /server_info says of it."""
    return {**shown(walk), "e2e_drafts": dict(found)}


def register() -> None:
    any_batch()
    HookRegistry.register(CREATE_WORKER, tell_ids, HookType.AFTER)
    take_over(WalkByConfidence, shown_drafts)
