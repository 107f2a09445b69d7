"""Prompt and answer may fill the context, but for drafts that cannot be left out."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.host.launch.length_check import reserved_tokens
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.tiers import PLAIN_TIER, Tier, chain_tier

HOST_RESERVES = 11


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ({1: [PLAIN_TIER, chain_tier(10)]}, 0),
        ({1: [chain_tier(3)], 5: [PLAIN_TIER]}, 4),
        ({1: [chain_tier(1), chain_tier(10)], 9: [chain_tier(5), chain_tier(7)]}, 6),
        ({1: [Tier(3, 4, 8), Tier(5, 4, 8)]}, 12),
    ],
)
def test_what_a_batch_must_draft_is_left_free(
    ranges: Mapping[int, Sequence[Tier]], expected: int
) -> None:
    assert reserved_tokens(Ladder(ranges)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, HOST_RESERVES),
        (SimpleNamespace(static_reason="LoRA", config=None), HOST_RESERVES),
        (
            SimpleNamespace(
                static_reason=None,
                config=SimpleNamespace(ladder=Ladder({1: [PLAIN_TIER, chain_tier(10)]})),
            ),
            0,
        ),
    ],
)
def test_the_host_s_own_number_holds_unless_tiers_may_switch(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch, options: Any, expected: int
) -> None:
    from sglang.srt.managers import tokenizer_manager, utils

    from sglang_adaptive_spec.host import registration

    assert tokenizer_manager.compute_num_reserved_tokens is utils.compute_num_reserved_tokens
    assert utils.compute_num_reserved_tokens.__wrapped__  # hooked, where the check calls it, too
    server_args = SimpleNamespace(_adaptive_spec=options)
    monkeypatch.setattr(registration, "get_server_args", lambda: server_args)
    assert registration._reserved_tokens(HOST_RESERVES) == expected
