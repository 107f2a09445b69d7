"""What start-up says of sizes, and the number of requests that it takes back."""

import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.host.sizes import OF_A_DRAFT, OF_A_TABLE, Stages
from sglang_adaptive_spec.ladder import Ladder
from sglang_adaptive_spec.runtime.graphs import graph_batch_sizes
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, chain_tier

THREE = chain_tier(3)


class Engine:
    """The engine as far as sizes depend on it, and a drafter that its draft lags behind."""

    catch_ups = object()

    def __init__(
        self,
        cap: int,
        is_raised: bool = True,
        most_tokens: int | None = None,
        stages: Stages = OF_A_DRAFT,
    ) -> None:
        self.options = SimpleNamespace(
            is_cap_raised=is_raised, startup_tier=THREE, most_tokens=most_tokens, stages=stages
        )
        self.target_runner = SimpleNamespace(max_running_requests=cap)
        self.ranks = SimpleNamespace(num_shards=1)
        self.prepared_for: list[int] = []

    def prepare(self, max_batch_size: int, _part_size: int, _ranks: Any) -> None:
        self.prepared_for.append(max_batch_size)


class Captures:
    """Graphs of 1 to 256 requests; zero steps alone from 33 on, or up to 32 only."""

    def __init__(self, engine: Engine, plain_up_to: int | None = None) -> None:
        self._runner = engine.target_runner
        upper = [PLAIN_TIER] if plain_up_to is None else [THREE]
        self.ladder = Ladder({1: [PLAIN_TIER, THREE], (plain_up_to or 32) + 1: upper})

    @property
    def max_batch_size(self) -> int:
        return int(self._runner.max_running_requests)

    def sizes(self, tier: Any) -> tuple[int, ...]:
        captured = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        return tuple(graph_batch_sizes(tier, captured, self.ladder, self.max_batch_size))

    def decode_sizes(self, tier: Any) -> tuple[int, ...]:
        return self.sizes(tier) + ((512,) if tier == PLAIN_TIER else ())


def builder(engine: Any, captures: Any) -> Any:
    from sglang_adaptive_spec.host.startup.tier_builder import TierBuilder

    took = SimpleNamespace(running=contextlib.nullcontext, gb=0.5, seconds=0.25)
    startup = SimpleNamespace(
        catch_ups=took, backends=took, graphs=took, packed=took, shared_gb=lambda: 1.5
    )
    return TierBuilder(engine, captures, startup, drafter=engine, lora=())


def test_a_number_of_our_own_is_taken_back_to_what_graphs_hold(
    plugins_loaded: None, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(2048)
    tiers = builder(engine, Captures(engine))
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        assert tiers.lower_cap_size() == 256
        tiers.lower_cap(256)
    assert engine.target_runner.max_running_requests == 256
    assert engine.prepared_for == [256]  # no memory is kept for more
    assert "up to 256 running requests, not 2048" in caplog.text
    assert tiers.lower_cap_size() is None


@pytest.mark.parametrize(("cap", "is_raised"), [(2048, False), (48, False), (256, True)])
def test_other_numbers_stay(plugins_loaded: None, cap: int, is_raised: bool) -> None:
    engine = Engine(cap, is_raised)
    assert builder(engine, Captures(engine)).lower_cap_size() is None


@pytest.mark.parametrize(
    ("cap", "plain_up_to", "size"), [(2048, None, 256), (48, None, 48), (2048, 32, 32)]
)
def test_a_catch_up_takes_what_graphs_at_zero_steps_hold(
    plugins_loaded: None, cap: int, plain_up_to: int | None, size: int
) -> None:
    engine = Engine(cap)
    assert builder(engine, Captures(engine, plain_up_to)).max_catch_up_size() == size


def test_a_catch_up_sends_no_more_tokens_than_experts_take(plugins_loaded: None) -> None:
    engine = Engine(2048, most_tokens=128)
    assert builder(engine, Captures(engine)).max_catch_up_size() == 128 // CATCH_UP_ROUNDS


def test_more_are_decoded_at_zero_steps_than_are_caught_up(plugins_loaded: None) -> None:
    engine = Engine(2048)
    tiers = builder(engine, Captures(engine))
    assert max(tiers.graph_batch_sizes(PLAIN_TIER)) == 512
    assert tiers.max_catch_up_size() == tiers.max_listed_size() == 256
    assert tiers.extent() == (512, 256 * CATCH_UP_ROUNDS, 32 * 3)


def test_a_table_catches_nothing_up_and_its_tiers_are_priced_by_one_forward(
    plugins_loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.host.startup import tier_builder

    engine = Engine(2048, stages=OF_A_TABLE)
    tiers = builder(engine, Captures(engine))
    assert tiers.extent() == (512, 256, 0)
    planned: list[Any] = []
    monkeypatch.setattr(tier_builder, "build_tiers", lambda *given: planned.append(given))
    state = SimpleNamespace(graph_batch_sizes=(1, 2))
    engine.pool = SimpleNamespace(states=[state])
    engine.options.config = SimpleNamespace(policy="goodput", memory_budget_gb=4.0)
    tiers.build_others()
    ((_, _, memory, _),) = planned
    assert memory.unit_gb == pytest.approx(0.5 / 2)


@pytest.mark.parametrize(("cap", "size"), [(2048, 256), (64, 64)])
def test_without_graphs_a_catch_up_takes_as_many_as_graphs_would(
    plugins_loaded: None, cap: int, size: int
) -> None:
    engine = Engine(cap)
    captures = SimpleNamespace(max_batch_size=cap, sizes=lambda _tier: ())
    assert builder(engine, captures).max_catch_up_size() == size


def test_what_belongs_to_no_tier_is_shown_by_what_it_is(plugins_loaded: None) -> None:
    engine = Engine(64)
    kept = builder(engine, Captures(engine)).kept()
    assert kept == {
        "kept for the draft at zero steps": (0.5, 0.25),
        "shared by all tiers": (1.5, 0.0),
        "packed rounds": (0.5, 0.25),
    }
