"""What is counted of timed rounds: times meet their own round, expectations meet results."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import (
    AdaptiveConfig,
    ConfigError,
    load_config,
    parse_config,
)
from sglang_adaptive_spec.loop.controller import AdaptiveController
from sglang_adaptive_spec.loop.meter import RoundMeter, open_recorder, policy_state
from sglang_adaptive_spec.loop.round import Round
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.decision import Decision
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.protocol import Policy
from sglang_adaptive_spec.tiers import (
    PLAIN_TIER,
    CatchUp,
    DecodeBatch,
    Observation,
    Plan,
    RoundTime,
    Tier,
    chain_tier,
)
from sglang_adaptive_spec.trace.format import read_trace
from sglang_adaptive_spec.trace.record import TraceRecorder
from tests.controller_fakes import STARTUP, FakePool, KnownPeriods

STEPS = (0, 1, 3)
TIERS = [chain_tier(steps) for steps in STEPS]
REQUESTS = ("a", "b")
LONG = 3000  # rounds: some probes
DECISION = Decision(
    7, 2, tuple(TIERS[:2]), np.array([2.0, 3.0]), np.array([9.0, 10.0]), TIERS[1], TIERS[1], "best"
)  # about two of the three tiers


def round_ms(tier: Tier) -> float:
    return 10.0 + tier.num_steps


def goodput_config(**keys: object) -> AdaptiveConfig:
    document = {"policy": "goodput", "1": {"candidate_steps": STEPS}, **keys}
    return parse_config("test.json", json.dumps(document).encode())


def goodput() -> GoodputPolicy:
    policy = build_policy(goodput_config(), 1)
    assert isinstance(policy, GoodputPolicy)
    for tier in TIERS:
        policy.costs.seed(tier, 2, 200, round_ms(tier))
    policy.costs.fit()
    return policy


class Server:
    """Two rounds in flight, as under the overlap schedule; only the first draft holds."""

    def __init__(self, policy: Policy, recorder: TraceRecorder | None = None) -> None:
        self.policy, self.meter = policy, RoundMeter(TIERS)
        clock = KnownPeriods(lambda launched: round_ms(launched.tier))
        self.controller = AdaptiveController(
            policy, FakePool(), STARTUP, clock, meter=self.meter, recorder=recorder
        )
        self.ran: list[Tier] = []
        self._in_flight: list[Round] = []

    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            batch = DecodeBatch(2, REQUESTS, 200, 0.01 * len(self.ran))
            launched = self.controller.before_decode(batch)
            self.ran.append(launched.tier)
            self._in_flight.append(launched)
            if len(self._in_flight) > 1:
                correct = min(self._in_flight.pop(0).tier.num_steps, 1)
                self.controller.observe([correct] * 2, 2)
        self.controller.learn()

    def state(self) -> dict[str, Any]:
        return policy_state(self.policy, self.meter, self.controller.newest)


def a_round(tier: Tier, ms: float | None, **known: Any) -> Round:
    """A round of two requests of which each accepted a draft, and what is known of it."""
    plan = Plan(tier, catch_up=known.pop("catch_up", CatchUp.NONE))
    period = None if ms is None else RoundTime(plan, 2, 200, ms)
    made = {"num_correct_drafts": [1, 1], "decision": DECISION, "period": period, **known}
    return Round(0, made.pop("batch", DecodeBatch(2, REQUESTS, 200)), plan, **made)


def test_a_time_meets_the_tokens_of_its_own_round() -> None:
    server = Server(goodput())
    server.run(LONG)
    done = server.ran[: LONG - 2]  # one in flight, one without its time
    for tier, timed in server.meter.by_tier.items():
        assert timed.num_rounds <= done.count(tier)
        assert timed.num_rounds >= done.count(tier) - 2  # before the first decision
        assert timed.tokens == timed.num_rounds * 2 * (min(tier.num_steps, 1) + 1)
        assert timed.ms == pytest.approx(timed.num_rounds * round_ms(tier))
    assert len({tier for tier in done}) > 1, "else the tokens of any round would do"


def test_expectations_come_close_to_results_once_the_traffic_is_known() -> None:
    server = Server(goodput())
    server.run(200)
    before = {t: timed.describe() for t, timed in server.meter.by_tier.items()}
    server.run(400)
    home = max(set(server.ran[200:]), key=server.ran[200:].count)
    after = server.meter.by_tier[home].describe()
    gained = {key: after[key] - before[home][key] for key in ("tokens", "ms", "num_rounds")}
    expected = {
        key: after[f"expected_{key}"] - before[home][f"expected_{key}"] for key in ("tokens", "ms")
    }
    assert gained["num_rounds"] > 200
    assert expected["tokens"] == pytest.approx(gained["tokens"], rel=0.05)
    assert expected["ms"] == pytest.approx(gained["ms"], rel=0.05)


def test_a_round_is_booked_once_all_of_it_is_known() -> None:
    meter, one = RoundMeter(TIERS), chain_tier(1)
    meter.add(a_round(one, None))  # its period was not measured
    meter.add(a_round(one, 11.0, num_correct_drafts=None))  # its result was lost
    meter.add(a_round(one, 11.0, decision=None))  # nobody had decided yet
    meter.add(a_round(one, 11.0, batch=DecodeBatch(3, (*REQUESTS, "c"))))  # of another batch
    meter.add(a_round(chain_tier(3), 12.0))  # which was not weighed
    meter.add(a_round(chain_tier(7), 11.0))  # no tier of this server
    assert [timed.num_rounds for timed in meter.by_tier.values()] == [0, 0, 0]
    meter.add(a_round(one, 11.0))
    timed = meter.by_tier[one]
    assert (timed.num_rounds, timed.tokens, timed.ms) == (1, 4, 11.0)
    assert (timed.expected_tokens, timed.expected_ms) == (3.0, 10.0)


def test_a_round_that_stands_for_several_counts_as_many() -> None:
    meter, one = RoundMeter(TIERS), chain_tier(1)
    period = RoundTime(Plan(one), 2, 200, 11.0, num_rounds=5)
    meter.add(a_round(one, None, period=period, is_probe=True))
    timed = meter.by_tier[one]
    assert (timed.num_rounds, timed.tokens, timed.ms, timed.expected_ms) == (5, 20, 55.0, 50.0)
    assert (meter.num_probe_rounds, meter.probe_ms) == (5, 55.0)


def test_the_rounds_of_probes_are_booked_with_their_time() -> None:
    server = Server(goodput())
    server.run(LONG)
    state, meter = server.state(), server.meter
    assert state["decisions"]["home"] == "1", "the second draft never holds"
    probed = server.ran[100:].count(chain_tier(3))
    assert probed > 0
    assert meter.num_probe_rounds >= probed
    deep = meter.by_tier[chain_tier(3)]
    assert meter.probe_ms <= deep.ms
    probing = state["decisions"]["probing"]
    assert probing["num_probes"] > 0
    total_ms = sum(timed.ms for timed in meter.by_tier.values())
    assert probing["measured_share_of_time"] == pytest.approx(meter.probe_ms / total_ms, abs=1e-5)
    assert 0 < probing["measured_share_of_time"] <= 0.01


def test_a_catch_up_is_booked_with_its_time() -> None:
    meter = RoundMeter(TIERS)
    meter.add(a_round(PLAIN_TIER, 25.0, catch_up=CatchUp.WHOLE, num_correct_drafts=[0, 0]))
    meter.add(a_round(PLAIN_TIER, 9.0, num_correct_drafts=[0, 0]))
    assert (meter.num_catch_ups, meter.catch_up_ms) == (1, 25.0)
    assert meter.by_tier[PLAIN_TIER].num_rounds == 2


def test_a_server_with_a_meter_decides_as_it_would_without() -> None:
    with_meter, without = Server(goodput()), Server(goodput())
    without.controller.meter = None
    with_meter.run(LONG)
    without.run(LONG)
    assert with_meter.ran == without.ran
    assert len(set(without.ran)) > 1


def test_the_state_is_plain_and_shows_both_sides() -> None:
    server = Server(goodput())
    assert json.loads(json.dumps(server.state()))["decisions"]["newest"] is None
    server.run(300)
    state = server.state()
    assert json.loads(json.dumps(state)) == state
    assert state["costs"]["is_seeded"]
    assert state["costs"]["batch_size"] == 2
    for steps, ms in state["costs"]["round_ms"].items():
        assert ms == pytest.approx(round_ms(chain_tier(int(steps))), rel=0.05)
    timed = state["timed_rounds"][state["decisions"]["newest"]["tier"]]
    assert timed["tokens_per_ms"] == pytest.approx(timed["tokens"] / timed["ms"], rel=1e-3)
    assert state["decisions"]["newest"]["runner_up"] in map(str, STEPS)
    assert state["num_stale"] is None


def test_the_averaging_policy_shows_its_slots_and_what_it_left_out() -> None:
    policy = build_policy(load_config("host-default"), 1)
    policy.observe(Observation(Plan(chain_tier(3)), 1, ("a",), [2]))
    state = policy_state(policy, RoundMeter(TIERS), DecodeBatch(1, ("a",)))
    assert state["num_stale"] == 1
    assert state["slots"]["1"]["current_steps"] == 1
    assert state["decisions"] is state["costs"] is state["acceptance"] is None


# -- recording --


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TraceRecorder]:
    opened = open_recorder(goodput_config(record=str(tmp_path / "rounds.jsonl")), "tiny")
    assert opened is not None
    yield opened
    opened.close()


def test_every_observed_round_is_recorded_with_its_own_launch(
    recorder: TraceRecorder, tmp_path: Path
) -> None:
    server = Server(goodput(), recorder)
    server.run(40)
    recorder.close()
    trace = read_trace(tmp_path / "rounds.jsonl")
    assert (trace.header.name, trace.header.max_steps) == ("tiny", 3)
    assert [one.num_steps for one in trace.rounds] == [tier.num_steps for tier in server.ran[:39]]
    assert [one.time_s for one in trace.rounds] == [0.01 * idx for idx in range(39)]
    assert {one.context_tokens for one in trace.rounds} == {200}


def test_a_round_whose_result_was_lost_is_not_taken_for_the_next(
    recorder: TraceRecorder, tmp_path: Path
) -> None:
    controller = Server(goodput(), recorder).controller
    controller.before_decode(DecodeBatch(1, ("gone",), 50, 1.0))
    controller.before_decode(DecodeBatch(2, REQUESTS, 200, 2.0))
    controller.observe([1, 0], 2)
    controller.observe([1], 1)  # of a round that nobody launched
    controller.learn()
    recorder.close()
    (one,) = read_trace(tmp_path / "rounds.jsonl").rounds
    assert (one.time_s, one.context_tokens, one.num_correct_drafts) == (2.0, 200, [1, 0])


def test_a_recording_replays(
    recorder: TraceRecorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Server(goodput(), recorder).run(120)
    recorder.close()
    assert main(["simulate", "--json", "--trace", str(tmp_path / "rounds.jsonl")]) == 0
    (report,) = json.loads(capsys.readouterr().out)["traces"]
    assert report["oracle_tokens_per_s"] > 0


def test_without_the_key_nothing_is_recorded() -> None:
    assert open_recorder(goodput_config(), "tiny") is None


def test_replicas_write_files_of_their_own(tmp_path: Path) -> None:
    config = goodput_config(record=str(tmp_path / "rounds.jsonl"))
    for replica in (0, 1):
        opened = open_recorder(config, "tiny", replica)
        assert opened is not None
        opened.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds-0.jsonl", "rounds-1.jsonl"]


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "rounds.jsonl"
    with pytest.raises(ConfigError) as caught:
        open_recorder(goodput_config(record=str(path)), "tiny")
    assert str(caught.value) == (
        f"test.json: record names {path}, which cannot be written (No such file or directory); "
        "allowed: the path of a file in a folder that exists and may be written; "
        "fix: create the folder, name another path, or remove record."
    )
