"""The draft sees a prompt one round late: what may wait, in which order it runs, who gets it."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

HIDDEN_SIZE = 3


@pytest.fixture(scope="module")
def module(plugins_loaded: None) -> Any:
    from sglang_adaptive_spec.host.drafters import late_prefill

    return late_prefill


def draft_input(*tokens: int) -> Any:
    """What a draft's prefill proposes; every figure of a row is its token."""
    rows = torch.tensor(tokens, dtype=torch.float32)[:, None]
    return SimpleNamespace(
        topk_p=rows,
        topk_index=rows.to(torch.int64),
        hidden_states=rows.expand(-1, HIDDEN_SIZE),
        bonus_tokens=torch.tensor(tokens),
    )


def prefill(*rids: str, **changes: Any) -> Any:
    """A batch that the host is about to show the draft."""
    reqs = [SimpleNamespace(rid=rid) for rid in rids]
    fields = {
        "forward_mode": SimpleNamespace(is_idle=lambda: False),
        "chunked_req": None,
        "input_ids": torch.zeros(4 * len(rids)),
        "sampling_info": SimpleNamespace(temperatures=None, top_ks=None, sampling_seed=None),
        **dict.fromkeys(("req_pool_indices", "seq_lens", "seq_lens_cpu", "orig_seq_lens")),
        **dict.fromkeys(("multimodal_inputs", "top_logprobs_nums", "token_ids_logprobs")),
    }
    return SimpleNamespace(reqs=reqs, **(fields | changes))


class Server:
    """Keeps what ran, and in which tier; what the draft makes of a request is its name's number."""

    def __init__(self, module: Any) -> None:
        self.ran: list[list[str]] = []
        self.is_at_startup_tier, self.is_wanted = False, True
        made_up = draft_input(*[-1] * module.MOST_REQUESTS)
        self.late = module.LatePrefills(self.run, made_up, self.at_tier, lambda: self.is_wanted)

    @contextlib.contextmanager
    def at_tier(self) -> Iterator[None]:
        self.is_at_startup_tier = True
        yield
        self.is_at_startup_tier = False

    def run(self, put_off: Any) -> Any:
        assert self.is_at_startup_tier
        rids = [req.rid for req in put_off.batch.reqs]
        self.ran.append(rids)
        return draft_input(*map(int, rids))

    def put_off(self, *rids: str) -> Any:
        hidden, tokens = torch.ones(4, HIDDEN_SIZE), torch.tensor([int(rid) for rid in rids])
        return self.late.put_off(prefill(*rids), hidden, tokens)


@pytest.fixture
def server(module: Any) -> Server:
    return Server(module)


def test_made_up_proposals_stand_in_until_the_decode_round_that_runs_it(server: Server) -> None:
    made_up = server.put_off("7", "8")
    assert made_up.bonus_tokens.tolist() == [7, 8]
    assert made_up.topk_index.tolist() == [[-1], [-1]]
    assert server.ran == []
    rows = [SimpleNamespace(rid=rid) for rid in ("5", "8", "7")]
    decoding = draft_input(5, -1, -1)
    assert server.late.fill(rows, decoding)
    assert decoding.topk_p.tolist() == [[5.0], [8.0], [7.0]]
    assert decoding.topk_index.tolist() == [[5], [8], [7]]
    assert decoding.hidden_states[:, 0].tolist() == [5.0, 8.0, 7.0]
    assert not server.late.fill(rows, decoding)
    assert server.ran == [["7", "8"]]


def test_what_was_made_up_is_never_written_to(server: Server) -> None:
    first, second = server.put_off("7"), server.put_off("8")
    server.late.fill([SimpleNamespace(rid="7"), SimpleNamespace(rid="8")], draft_input(-1, -1))
    assert first.topk_index.tolist() == second.topk_index.tolist() == [[-1]]
    assert server.put_off("9").topk_index.tolist() == [[-1]]


def test_several_run_in_order_and_a_request_that_is_gone_leaves_no_trace(server: Server) -> None:
    server.put_off("7")
    server.put_off("8", "9")
    server.late.run()  # before a prefill that must not wait
    server.put_off("6")
    decoding = draft_input(-1, -1)
    server.late.fill([SimpleNamespace(rid="6"), SimpleNamespace(rid="9")], decoding)
    assert server.ran == [["7"], ["8", "9"], ["6"]]
    assert decoding.topk_index.tolist() == [[6], [9]]


def test_a_draft_that_reads_no_hidden_states_is_shown_none(module: Any) -> None:
    server = Server(module)
    made_up = draft_input(*[-1] * module.MOST_REQUESTS)
    made_up.hidden_states = None

    def run(put_off: Any) -> Any:
        assert put_off.hidden_states is None
        return SimpleNamespace(**vars(draft_input(7)) | {"hidden_states": None})

    late = module.LatePrefills(run, made_up, server.at_tier, lambda: True)
    assert late.put_off(prefill("7"), None, torch.tensor([7])).hidden_states is None
    decoding = SimpleNamespace(**vars(draft_input(-1)) | {"hidden_states": None})
    late.fill([SimpleNamespace(rid="7")], decoding)
    assert (decoding.topk_index.tolist(), decoding.hidden_states) == ([[7]], None)


def test_the_targets_hidden_states_are_copied(module: Any) -> None:
    """They may lie in memory that the decodes in between write to."""
    seen: list[Any] = []

    def run(put_off: Any) -> Any:
        seen.append(put_off.hidden_states.tolist())
        return draft_input(7)

    made_up = draft_input(*[-1] * module.MOST_REQUESTS)
    late = module.LatePrefills(run, made_up, contextlib.nullcontext, lambda: True)
    hidden = torch.ones(1, HIDDEN_SIZE)
    late.put_off(prefill("7"), hidden, torch.tensor([7]))
    hidden.zero_()
    late.run()
    assert seen == [[[1.0] * HIDDEN_SIZE]]


def test_the_batch_may_go_on_before_it_runs(server: Server) -> None:
    batch = prefill("7")
    server.late.put_off(batch, None, torch.tensor([7]))
    batch.reqs.append(SimpleNamespace(rid="8"))  # as the host merges batches
    server.late.run()
    assert server.ran == [["7"]]


@pytest.mark.parametrize(
    ("changes", "embeds"),
    [
        ({"chunked_req": object()}, None),
        ({"forward_mode": SimpleNamespace(is_idle=lambda: True)}, None),
        ({"input_ids": torch.zeros(4096)}, None),
        ({"reqs": [None] * 32}, None),
        ({}, object()),
    ],
    ids=["a chunk", "idle", "long prompts", "many requests", "pictures"],
)
def test_what_must_not_wait(server: Server, changes: dict[str, Any], embeds: object) -> None:
    batch = prefill("7")
    assert server.late.takes(batch, None)
    server.is_wanted = False
    assert not server.late.takes(batch, None)
    server.is_wanted = True
    assert not server.late.takes(SimpleNamespace(**vars(batch) | changes), embeds)


def engine(module: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Any, Any]:
    """What `may_put_off` takes, of a server where it may be; ``changes`` by name."""
    flags = ("enable_hierarchical_cache", "enable_mixed_chunk")
    flags = (*flags, "speculative_use_rejection_sampling")
    view = SimpleNamespace(
        disaggregation_mode=changes.get("disaggregation_mode", "null"),
        **{name: changes.get(name, False) for name in flags},
    )
    monkeypatch.setattr(module, "resolved_view", lambda view: view)
    needs = changes.get("needs_cpu_seq_lens", False)
    runner = SimpleNamespace(
        is_hybrid_swa=changes.get("is_hybrid_swa", False),
        attn_backend=SimpleNamespace(needs_cpu_seq_lens=needs),
    )
    draft = SimpleNamespace(
        draft_runner=runner, seed_dsa_topk_from_draft_extend=changes.get("dsa", False)
    )
    ranks = SimpleNamespace(are_several=changes.get("are_several", False))
    device = changes.get("device", "cuda")
    return SimpleNamespace(server_args=view, ranks=ranks, device=device), draft


@pytest.mark.parametrize("changes", [{}, {"device": "cpu", "needs_cpu_seq_lens": True}])
def test_a_server_whose_draft_may_see_prompts_late(
    module: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    assert module.may_put_off(*engine(module, monkeypatch, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"are_several": True},
        {"disaggregation_mode": "decode"},
        {"enable_hierarchical_cache": True},
        {"enable_mixed_chunk": True},
        {"speculative_use_rejection_sampling": True},
        {"is_hybrid_swa": True},
        {"dsa": True},
        {"needs_cpu_seq_lens": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_somebody_else_reads_what_the_draft_writes_it_sees_prompts_at_once(
    module: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    assert not module.may_put_off(*engine(module, monkeypatch, **changes))
