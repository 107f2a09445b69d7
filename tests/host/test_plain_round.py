"""Which models keep the host's zero-step round, and what zero-step rounds know of first drafts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig


def runner(**changes: Any) -> Any:
    """A target's model runner, as far as it is asked; ``changes`` by attribute."""
    model_config = SimpleNamespace(
        hf_config=LlamaConfig(), is_encoder_decoder=False, linear_attn_registry_result=None
    )
    model_runner = SimpleNamespace(
        model_config=model_config,
        hisparse_coordinator=None,
        ngram_embedding_manager=SimpleNamespace(enabled=False),
    )
    for name, value in changes.items():
        owner, _, leaf = name.rpartition("__")
        setattr(getattr(model_runner, owner) if owner else model_runner, leaf, value)
    return model_runner


@pytest.fixture(scope="module")
def plain_round(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.serving import plain_round

    return plain_round


def test_an_ordinary_model_has_plain_rounds(plain_round: Any) -> None:
    assert plain_round.plain_round_unsupported_reason(runner()) is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"hisparse_coordinator": object()}, "HiSparse"),
        ({"ngram_embedding_manager": SimpleNamespace(enabled=True)}, "n-gram"),
    ],
)
def test_what_the_scheduler_prepares_keeps_the_hosts_round(
    plain_round: Any, changes: dict[str, Any], word: str
) -> None:
    assert word in plain_round.plain_round_unsupported_reason(runner(**changes))


def test_a_model_with_recurrent_state_keeps_the_hosts_round(plain_round: Any) -> None:
    from sglang.srt.configs.falcon_h1 import FalconH1Config

    recurrent = FalconH1Config()
    model_runner = runner(model_config__hf_config=recurrent)
    assert "recurrent" in plain_round.plain_round_unsupported_reason(model_runner)


def test_first_drafts_are_told_only_where_the_draft_was_current(plain_round: Any) -> None:
    firsts = plain_round.FirstDrafts(torch.tensor([True, True, False]), [True, False, True])
    assert firsts.read() == [True, None, False]
