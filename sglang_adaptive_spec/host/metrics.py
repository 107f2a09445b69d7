"""Prometheus counters under the host's /metrics, exported by a thread, not by the rounds.

The rounds bump plain integers; once a second this thread adds what is new to the counters:

    sglang:adaptive_spec_rounds_total{model_name,num_steps}
    sglang:adaptive_spec_proposed_drafts_total{model_name,num_steps}
    sglang:adaptive_spec_accepted_drafts_total{model_name,num_steps,position}
    sglang:adaptive_spec_switches_total{model_name,reason}
    sglang:adaptive_spec_fallbacks_total{model_name,reason}

Accept length by tier, for example:
    1 + sum by (num_steps) (rate(sglang:adaptive_spec_accepted_drafts_total[1m]))
      / (sum by (num_steps) (rate(sglang:adaptive_spec_proposed_drafts_total[1m])) / num_steps)
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from sglang_adaptive_spec.counters import RoundCounters
from sglang_adaptive_spec.policy.tiers import Tier

EXPORT_INTERVAL_S = 1.0  # well below the scrape intervals in use (Prometheus' default: 60 s)


class MetricsExporter(threading.Thread):
    """Adds to Prometheus what the counters gained since the last export."""

    def __init__(self, counters: RoundCounters, tiers: Sequence[Tier], model_name: str) -> None:
        super().__init__(name="adaptive-spec-metrics", daemon=True)
        # Imported here: the host sets PROMETHEUS_MULTIPROC_DIR first (observability/
        # metrics_collector.py), and prometheus_client reads it when it is imported.
        from prometheus_client import Counter

        self._counters, self._tiers, self._model_name = counters, tiers, model_name
        self._exported: dict[tuple[str, tuple[str, ...]], int] = {}

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"sglang:adaptive_spec_{name}", text, ["model_name", *labels])

        accepted = "Request-rounds whose drafts up to this position were all accepted."
        self._metrics: dict[str, Any] = {
            "rounds": counter("rounds", "Decode rounds.", "num_steps"),
            "proposed": counter("proposed_drafts", "Drafts proposed.", "num_steps"),
            "accepted": counter("accepted_drafts", accepted, "num_steps", "position"),
            "switches": counter("switches", "Tier switches.", "reason"),
            "fallbacks": counter("fallbacks", "Failures survived.", "reason"),
        }

    def run(self) -> None:
        """Exports once a second until the process ends."""
        wait = threading.Event().wait
        while not wait(EXPORT_INTERVAL_S):
            self.export()

    def export(self) -> None:
        """Adds what is new since the last call."""
        for metric, labels, total in self._totals():
            gained = total - self._exported.get((metric, labels), 0)
            if gained:
                self._metrics[metric].labels(self._model_name, *labels).inc(gained)
                self._exported[metric, labels] = total

    def _totals(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        counters = self._counters
        for tier in self._tiers:
            steps = str(tier.num_steps)
            yield "rounds", (steps,), counters.num_rounds.get(tier, 0)
            yield "proposed", (steps,), counters.num_proposed_drafts(tier)
            for position, total in enumerate(counters.accepted_per_position(tier), start=1):
                yield "accepted", (steps, str(position)), total
        for reason, total in counters.num_switches.items():
            yield "switches", (reason,), total
        yield "fallbacks", ("policy_error",), counters.num_policy_errors
        yield "fallbacks", ("feedback_mismatch",), counters.num_feedback_mismatches
