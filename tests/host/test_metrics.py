"""The counters under /metrics: what the rounds gained, nothing twice, and no rounding."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.tiers import PLAIN_TIER, CatchUp, Plan, chain_tier
from tests.loop.test_meter import LONG, Server, a_round, goodput

THREE = chain_tier(3)


@pytest.fixture
def registered() -> Any:
    before = set(REGISTRY._collector_to_names)  # there is no public way to list them
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


@pytest.fixture
def exporter_of(registered: None) -> Any:
    from sglang_adaptive_spec.host.reporting.metrics import MetricsExporter

    def make(counters: RoundCounters, server: Server) -> Any:
        return MetricsExporter(counters, server.meter, server.policy, "tiny")

    return make


def value(name: str, **labels: str) -> float | None:
    if "tier" in labels:
        labels["num_steps"] = labels["tier"]  # the label's old name
    return REGISTRY.get_sample_value(
        f"sglang:adaptive_spec_{name}_total", {"model_name": "tiny", **labels}
    )


def test_accept_length_is_one_query(exporter_of: Any) -> None:
    counters = RoundCounters()
    exporter = exporter_of(counters, Server(goodput()))
    counters.count_round(Plan(THREE), [0, 3])
    counters.count_round(Plan(THREE, verify_lens=(4,)), [3])
    exporter.export()
    accepted = [value("accepted_drafts", tier="3", position=str(d)) or 0 for d in (1, 2, 3)]
    assert value("request_rounds", tier="3") == 3
    assert value("packed_rounds", tier="3") == 1
    assert 1 + sum(accepted) / 3 == 3.0  # (1 + 4 + 4) / 3
    assert value("request_rounds", tier="1") is None  # a series appears with its first round


def test_what_was_exported_is_not_exported_again(exporter_of: Any) -> None:
    server = Server(goodput())
    exporter = exporter_of(RoundCounters(), server)
    for _ in range(3):
        server.run(LONG // 3)
        exporter.export()
        exporter.export()
    meter, policy = server.meter, server.policy
    for tier, timed in meter.by_tier.items():
        steps = str(tier.num_steps)
        shown = {
            "timed_rounds": timed.num_rounds,
            "timed_tokens": timed.tokens,
            "timed_ms": timed.ms,
            "expected_tokens": timed.expected_tokens,
            "expected_ms": timed.expected_ms,
        }
        for name, total in shown.items():
            assert (value(name, tier=steps) or 0.0) == pytest.approx(total), name
    assert value("probe_rounds") == meter.num_probe_rounds > 0
    assert value("probe_ms") == pytest.approx(meter.probe_ms)
    assert value("probes") == policy.prober.num_probes > 0  # type: ignore[attr-defined]
    moves = {reason: value("moves", reason=reason) or 0 for reason in ("gain", "slot")}
    assert moves == {reason: policy.num_switches[reason] for reason in moves}  # type: ignore[attr-defined]
    assert sum(moves.values()) > 0


def test_catch_ups_are_counted(exporter_of: Any) -> None:
    server = Server(goodput())
    exporter = exporter_of(RoundCounters(), server)
    server.meter.add(a_round(PLAIN_TIER, 25.0, catch_up=CatchUp.WHOLE))
    exporter.export()
    assert (value("catch_up_rounds"), value("catch_up_ms")) == (1, 25.0)


def test_failures_stand_at_zero_before_the_first_one(exporter_of: Any) -> None:
    """Without a 0 before it, increase() does not see a server's first failure."""
    counters = RoundCounters()
    exporter = exporter_of(counters, Server(goodput()))
    reasons = ("policy_error", "feedback_mismatch", "disagreement")
    assert [value("fallbacks", reason=reason) for reason in reasons] == [0, 0, 0]
    counters.num_policy_errors = 1
    counters.num_feedback_mismatches, counters.num_disagreements = 2, 3
    exporter.export()
    assert [value("fallbacks", reason=reason) for reason in reasons] == [1, 2, 3]


def test_an_export_that_fails_is_logged_once_and_the_next_one_exports(
    exporter_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counters = RoundCounters()
    counters.count_round(Plan(THREE), [2])
    exporter = exporter_of(counters, Server(goodput()))
    export, outcomes = exporter.export, iter([OSError("disk full"), OSError("disk full"), None])

    def flaky() -> None:
        outcome = next(outcomes, SystemExit())  # ends the thread after the third export
        if outcome is not None:
            raise outcome
        export()

    monkeypatch.setattr(exporter, "export", flaky)
    monkeypatch.setattr("sglang_adaptive_spec.host.reporting.metrics.EXPORT_INTERVAL_S", 0.0)
    with pytest.raises(SystemExit):
        exporter.run()
    assert value("rounds", tier="3") == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
