"""Prometheus counters under the host's /metrics, exported by a thread, not by the rounds.

The rounds bump plain numbers, a few rounds at a time; once a second this thread adds what is new to
the counters ``sglang:adaptive_spec_*_total``. All of them only grow; docs/monitoring.md lists them
with their labels and has the queries. Accept length by tier, for example:

    1 + sum by (tier) (rate(sglang:adaptive_spec_accepted_drafts_total[5m]))
      / sum by (tier) (rate(sglang:adaptive_spec_request_rounds_total[5m]))
"""

import logging
import threading
from collections.abc import Iterator
from typing import Any

from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.meter import RoundMeter
from sglang_adaptive_spec.policy.protocol import Policy

logger = logging.getLogger(__name__)

EXPORT_INTERVAL_S = 1.0  # well below the scrape intervals in use (Prometheus' default: 60 s)


class MetricsExporter(threading.Thread):
    """Adds to Prometheus what the counters gained since the last export."""

    def __init__(
        self,
        counters: RoundCounters,
        meter: RoundMeter,
        policy: Policy,
        model_name: str,
    ) -> None:
        super().__init__(name="adaptive-spec-metrics", daemon=True)
        # Imported here: the host sets PROMETHEUS_MULTIPROC_DIR first (observability/
        # metrics_collector.py), and prometheus_client reads it when it is imported.
        from prometheus_client import Counter

        self._counters, self._meter, self._policy = counters, meter, policy
        self._model_name = model_name
        self._exported: dict[tuple[str, tuple[str, ...]], float] = {}

        def counter(name: str, text: str, *labels: str) -> Any:
            old = ["num_steps"] if "tier" in labels else []  # its name until 0.2.0
            return Counter(f"sglang:adaptive_spec_{name}", text, ["model_name", *labels, *old])

        accepted = "Request-rounds whose drafts up to this position were all accepted."
        self._metrics: dict[str, Any] = {
            "rounds": counter("rounds", "Decode rounds.", "tier"),
            "packed_rounds": counter(
                "packed_rounds",
                "Rounds that verified another number of drafts of each request.",
                "tier",
            ),
            "request_rounds": counter("request_rounds", "Rounds times requests.", "tier"),
            "proposed": counter("proposed_drafts", "Drafts that the target verified.", "tier"),
            "accepted": counter("accepted_drafts", accepted, "tier", "position"),
            "switches": counter("switches", "Tier switches.", "reason"),
            "requests": counter("requests", "Requests with settings.", "reason"),
            "fallbacks": counter("fallbacks", "Failures survived.", "reason"),
            "timed_rounds": counter("timed_rounds", "Rounds with a known period.", "tier"),
            "timed_tokens": counter("timed_tokens", "Tokens of timed rounds.", "tier"),
            "timed_ms": counter("timed_ms", "Periods of timed rounds.", "tier"),
            "expected_tokens": counter("expected_tokens", "Expected of them.", "tier"),
            "expected_ms": counter("expected_ms", "Expected of them.", "tier"),
            "catch_up_rounds": counter("catch_up_rounds", "Timed rounds with a catch-up."),
            "catch_up_ms": counter("catch_up_ms", "Periods of those."),
            "probe_rounds": counter("probe_rounds", "Timed rounds of probes."),
            "probe_ms": counter("probe_ms", "Periods of those."),
            "probes": counter("probes", "Looks at a deeper tier."),
            "paid_probes": counter("paid_probes", "Probes whose tier was kept."),
            "moves": counter("moves", "Changes of the tier goodput settled on.", "reason"),
        }
        # At 0 from the start: increase() would not see a first failure that begins a series.
        for _, labels, _ in self._failures():
            self._metrics["fallbacks"].labels(model_name, *labels)

    def run(self) -> None:
        """Exports once a second until the process ends, whatever happens to one export."""
        wait, has_failed = threading.Event().wait, False
        while not wait(EXPORT_INTERVAL_S):
            try:
                self.export()
            except Exception:  # counters that stand still would look like no traffic
                if not has_failed:
                    logger.exception(
                        "ADAPTIVE_EAGLE could not export its counters to /metrics; it tries again "
                        "every second. Further failures are not logged."
                    )
                has_failed = True

    def export(self) -> None:
        """Adds what is new since the last call."""
        for metric, labels, total in self._totals():
            gained = total - self._exported.get((metric, labels), 0)
            if gained:
                self._metrics[metric].labels(self._model_name, *labels).inc(gained)
                self._exported[metric, labels] = total

    def _totals(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        counters = self._counters
        for tier in self._meter.by_tier:
            labels = (tier.label, tier.label)  # as tier and as num_steps
            yield "rounds", labels, counters.num_rounds.get(tier, 0)
            yield "packed_rounds", labels, counters.num_packed.get(tier, 0)
            yield "request_rounds", labels, counters.num_request_rounds(tier)
            yield "proposed", labels, counters.num_proposed_drafts(tier)
            for position, total in enumerate(counters.accepted_per_position(tier), start=1):
                yield "accepted", (tier.label, str(position), tier.label), total
        for reason, total in counters.num_switches.items():
            yield "switches", (reason,), total
        for reason, total in counters.num_requests.items():
            yield "requests", (reason,), total
        yield from self._failures()
        yield from self._timed_totals()

    def _failures(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        counters = self._counters
        yield "fallbacks", ("policy_error",), counters.num_policy_errors
        yield "fallbacks", ("feedback_mismatch",), counters.num_feedback_mismatches
        yield "fallbacks", ("disagreement",), counters.num_disagreements

    def _timed_totals(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        meter = self._meter
        for tier, timed in meter.by_tier.items():
            labels = (tier.label, tier.label)  # as tier and as num_steps
            yield "timed_rounds", labels, timed.num_rounds
            yield "timed_tokens", labels, timed.tokens
            yield "timed_ms", labels, timed.ms
            yield "expected_tokens", labels, timed.expected_tokens
            yield "expected_ms", labels, timed.expected_ms
        yield "catch_up_rounds", (), meter.num_catch_ups
        yield "catch_up_ms", (), meter.catch_up_ms
        yield "probe_rounds", (), meter.num_probe_rounds
        yield "probe_ms", (), meter.probe_ms
        for metric, by_label in self._policy.totals().items():
            for label, total in by_label.items():
                yield metric, (label,) if label else (), total
