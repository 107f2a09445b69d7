"""`explain`: from a server, a file or the shipped costs to text and JSON; and what it refuses."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import load_config, parse_config
from sglang_adaptive_spec.operate.explain.source import of_state
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.costs.cache import CostFile
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, seed_table
from sglang_adaptive_spec.tiers import DecodeBatch, Tier, chain_tier
from tests.operate.fake_server import info, serving


def cost_file(table: CostTable) -> bytes:
    """What a server keeps of its round times."""
    date, costs = "2026-01-01T00:00:00+00:00", table.to_dict()
    file = CostFile(format_version=1, date=date, key={}, costs=costs)
    return msgspec.json.encode(file)


def server_state() -> dict[str, Any]:
    """What a `goodput` server of the shipped costs shows, after a look at 16 requests."""
    policy: Any = build_policy(load_config(None), 3)
    seed_table(policy.costs, ExampleCosts("flashinfer"))
    batch = DecodeBatch(16, tuple(range(16)), context_tokens=16 * 300)
    policy.choose(batch)
    state = policy.state(batch)
    return {"version": "1", "policy": "goodput", "mode": "adaptive", "current_tier": "3", **state}


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", *arguments, "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_the_shipped_costs_need_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    data = told(capsys)
    assert [row["batch_size"] for row in data["batch_sizes"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert data["now"] is None
    breaks = {row["batch_size"]: row["break_even_acceptance"] for row in data["batch_sizes"]}
    assert 0.05 < breaks[1] < breaks[64] < breaks[128] < 0.8
    assert "FA3" in data["costs"]
    other = told(capsys, "--costs", "flashinfer")
    assert "FlashInfer" in other["costs"]
    assert other["batch_sizes"][-1]["break_even_acceptance"] > breaks[128]
    assert main(["explain", "--batch", "16", "--acceptance", "0.7"]) == 0
    text = capsys.readouterr().out
    assert "n = (1 - 0.7^6) / (1 - 0.7) = 2.941 tokens of a request" in text
    assert "Speculation pays from this acceptance on" in text


def test_a_batch_that_may_not_draft_has_no_equation(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--batch", "300")["equation"] is None
    assert main(["explain", "--batch", "300"]) == 0
    text = capsys.readouterr().out
    assert "At batch 300 only zero steps may run" in text
    assert "tokens of a request" not in text


@pytest.mark.parametrize(
    ("batch", "acceptance", "said"),
    [
        ("128", "0", "acceptance 0, zero steps pay. The best tier that drafts, 1 step:"),
        ("128", "0.5", "acceptance 0.5, 1 step:"),
        ("16", "0.7", "acceptance 0.7, 5 steps:"),
    ],
)
def test_the_equation_says_whether_drafting_pays(
    capsys: pytest.CaptureFixture[str], batch: str, acceptance: str, said: str
) -> None:
    assert main(["explain", "--batch", batch, "--acceptance", acceptance]) == 0
    assert said in capsys.readouterr().out


def test_a_server_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(info(server_state())) as url:
        data = told(capsys, "--server", url)
        assert main(["explain", "--server", f"{url}/"]) == 0
    text = capsys.readouterr().out
    assert data["costs"] == url
    assert data["now"]["batch_size"] == 16
    assert data["context_tokens_per_request"] == 300
    assert data["equation"]["batch_size"] == 16
    assert data["batch_sizes"][4]["pays"]["0.7"]["tier"] == "5"  # as by the costs it was seeded of
    assert "Now: batch 16" in text
    assert "in force: 3 steps" in text


@pytest.mark.parametrize(("error", "expected"), [(0.1, 3.0), (0.5, 0.63)])
def test_a_tree_s_lift_counts_where_the_server_knows_it(error: float, expected: float) -> None:
    slots = '"1": {"candidate_steps": [0, 1], "candidate_tiers": [[2, 4, 7]]}'
    config = parse_config("x", f'{{"policy": "goodput", {slots}}}'.encode())
    policy: Any = build_policy(config, 1)
    seed_table(policy.costs, ExampleCosts("flashinfer"))
    state = {"policy": "goodput", "current_tier": "1", **policy.state(DecodeBatch(1, ("a",)))}
    state["acceptance"]["tree_lifts"]["2-4-7"] = {"logits": [3.0] * 2, "errors": [error] * 2}
    explorer = of_state(state, "here", context=1).explorer
    tokens, hazard = explorer.tokens(Tier(2, 4, 7), 0.5), 1 / (1 + math.exp(-expected))
    assert tokens == pytest.approx(1 + hazard + hazard**2, rel=0.01)


def test_a_key_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(info(server_state()), key="secret") as url:
        assert told(capsys, "--server", url, "--api-key", "secret")["costs"] == url
        assert main(["explain", "--server", url]) == 1
    assert "pass --api-key" in capsys.readouterr().err


def test_a_file_of_a_server_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = seed_table(
        CostTable.empty([chain_tier(n) for n in (0, 1, 3)]), ExampleCosts("flashinfer")
    )
    path = tmp_path / "costs-1.json"
    path.write_bytes(cost_file(table))
    data = told(capsys, "--costs", str(path))
    assert data["costs"] == str(path)
    assert data["batch_sizes"][0]["round_ms"].keys() == {"0", "1", "3"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (info(None), "serves without ADAPTIVE_EAGLE"),
        (info({"version": "0.1", "policy": "goodput", "mode": "adaptive"}), "version 0.1"),
        (info({"version": "1", "policy": "ema", "mode": "adaptive"}), "policy ema"),
        ({"internal_states": []}, "did not answer as an SGLang server"),
        ([1], "did not answer as an SGLang server"),
    ],
)
def test_another_server_gets_a_sentence(
    answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(answer) as url:
        assert main(["explain", "--server", url]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "allowed: " in error
    assert "fix: " in error


def test_nobody_there_and_no_file_get_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--server", "http://127.0.0.1:9"]) == 1
    assert "start the server, or correct the address" in capsys.readouterr().err
    assert main(["explain", "--costs", str(tmp_path / "none.json")]) == 1
    assert "holds no costs" in capsys.readouterr().err


def test_costs_without_zero_steps_get_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = seed_table(CostTable.empty([chain_tier(n) for n in (1, 3)]), ExampleCosts("flashinfer"))
    path = tmp_path / "costs-1.json"
    path.write_bytes(cost_file(table))
    assert main(["explain", "--costs", str(path)]) == 1
    assert "has the round times of 1, 3 steps" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("--batch", "0"), ("--acceptance", "1"), ("--context", "x")])
def test_a_number_that_is_none_is_refused(
    flag: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["explain", *flag])
    assert flag[1] in capsys.readouterr().err
