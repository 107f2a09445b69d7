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


@pytest.mark.parametrize("kind", ["KV", "WHOLE"])
def test_a_draft_is_caught_up_on_what_a_run_that_was_cut_short_gave(
    plain_round: Any, kind: str
) -> None:
    """Of eight decodes three ran: what the draft lacks is five tokens less, in every row."""
    from sglang_adaptive_spec.host.host_round import open_round
    from sglang_adaptive_spec.host.serving.plain_decodes import Decoded

    told: list[Any] = []

    def run(*_: Any, on_cut: Any, **__: Any) -> Decoded:
        on_cut(3)
        return Decoded(None, [torch.zeros(2)] * 3, torch.zeros(2), [])

    def extend(*args: Any) -> None:
        told.append(args[-1])

    catch_ups = SimpleNamespace(begin=told.append, keep=None, extend=extend)
    catch_ups.were_level = lambda debts, num_decodes: [debt == num_decodes for debt in debts]
    firsts = SimpleNamespace(catch_ups=catch_ups, relayed=(), first_drafts=lambda _: None)
    decodes = SimpleNamespace(run=run, result=lambda *_: "result")
    rounds = SimpleNamespace(drafter=firsts, decodes=decodes, verify_input=None)
    open_round(())
    catch_up = getattr(plain_round.CatchUp, kind)
    plain = plain_round.PlainRound(rounds, ("a", "b"), [8, 14], catch_up)
    plain.num_decodes, plain.on_cut = 8, told.append
    draft_input = SimpleNamespace(bonus_tokens=None, topk_index=None)
    plain.trivial_verify_input(SimpleNamespace(spec_info=draft_input))
    assert plain.verify(object(), None) == "result"
    plain.draft_extend(None, object(), "result")
    assert told == [("a", "b"), 3, [3, 9]]
