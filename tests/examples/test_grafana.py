"""The dashboard and the alerts of examples/grafana ask for metrics and labels that are exported."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import prometheus_client
import promql_parser as promql
import pytest
import yaml
from prometheus_client.openmetrics import exposition as openmetrics

from sglang_adaptive_spec.contract.versions import installed_host
from sglang_adaptive_spec.loop.counters import RoundCounters
from tests.docs.pages import anchors
from tests.hosts import REPO
from tests.loop.test_meter import Server, goodput

FOLDER = REPO / "examples" / "grafana"
CASES = Path(__file__).parent / "alert_cases.yml"
DASHBOARD = json.loads((FOLDER / "adaptive-spec.json").read_text())
PANELS = DASHBOARD["panels"]
(GROUP,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
ALERTS = GROUP["rules"]
PAGE = (REPO / "docs" / "alerts.md").read_text()

OF_A_TARGET = {"job", "instance"}  # labels that Prometheus adds to whatever it scrapes
OF_HOST = {"model_name", "engine_type"}  # among others
HOST_METRICS = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
SETS = ("and", "or", "unless")


@cache
def labels_by_metric() -> dict[str, set[str]]:
    """Returns what our exporter registers, and what we ask of the host."""
    from sglang_adaptive_spec.host.reporting.metrics import MetricsExporter

    server = Server(goodput())
    apart = prometheus_client.CollectorRegistry()
    with patch("prometheus_client.Counter", partial(prometheus_client.Counter, registry=apart)):
        exporter = MetricsExporter(RoundCounters(), server.meter, server.policy, "tiny")
    ours = {f"{made._name}_total": set(made._labelnames) for made in exporter._metrics.values()}
    assert len(ours) > 15
    return {**ours, **dict.fromkeys(HOST_METRICS, OF_HOST)}


def queries() -> Iterator[tuple[str, str]]:
    """Yields what asks and its expression, variables filled in."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", filled(target["expr"])
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if found := re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", "")):
            yield variable["name"], f"sum by ({found[2]}) ({filled(found[1])})"


def filled(expr: str) -> str:
    return re.sub(r"\$(model_name|instance)", ".*", expr.replace("$__rate_interval", "5m"))


class Wrong(ValueError):
    """An expression that no server answers."""


def check(expr: str) -> None:
    """Raises ``Wrong`` if an expression names a metric or a label that there is not."""
    labels_of(promql.parse(expr))


def labels_of(node: Any) -> set[str] | None:
    """Returns the labels of what a node yields; None for a number."""
    match node:
        case promql.NumberLiteral() | promql.StringLiteral():
            return None
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return labels_of(node.expr)
        case promql.MatrixSelector():
            return labels_of(node.vector_selector)
        case promql.VectorSelector():
            return of_selector(node)
        case promql.Call():
            inner = [labels for each in node.args if (labels := labels_of(each)) is not None]
            if node.func.name == "scalar":
                return None
            return inner[0] if inner else set()
        case promql.AggregateExpr():
            return of_aggregate(node)
        case promql.BinaryExpr():
            return of_pair(node, labels_of(node.lhs), labels_of(node.rhs))
    raise Wrong(f"{type(node).__name__} is new to this check")


def of_selector(node: Any) -> set[str]:
    if node.name not in labels_by_metric():
        raise Wrong(f"no metric {node.name}")
    has = labels_by_metric()[node.name] | OF_A_TARGET
    require({matcher.name for matcher in node.matchers.matchers}, has)
    return has


def of_aggregate(node: Any) -> set[str]:
    has = labels_of(node.expr) or set()
    if node.modifier is None:
        return set()
    assert node.modifier.type == promql.AggModifierType.By
    require(set(node.modifier.labels), has)
    return set(node.modifier.labels)


def of_pair(node: Any, left: set[str] | None, right: set[str] | None) -> set[str] | None:
    if left is None or right is None:
        return right if left is None else left
    matching = None if node.modifier is None else node.modifier.matching
    operator = str(node.op)
    if matching is not None:
        assert matching.type == promql.LabelModifierType.Include
        require(set(matching.labels), left & right)
        is_one_to_one = node.modifier.card == promql.VectorMatchCardinality.OneToOne
        return set(matching.labels) if is_one_to_one else left
    if left != right and operator not in SETS:
        raise Wrong(f"{sorted(left)} and {sorted(right)} never match")
    return left & right if operator == "or" else left


def require(named: set[str], has: set[str]) -> None:
    if named - has:
        raise Wrong(f"no label {sorted(named - has)}")


@pytest.mark.parametrize(("_asks", "expr"), list(queries()))
def test_every_expression_names_metrics_and_labels_that_are_exported(_asks: str, expr: str) -> None:
    check(expr)


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("rate(sglang:adaptive_spec_round_total[5m])", "no metric"),
        ("rate(sglang:adaptive_spec_rounds[5m])", "no metric"),
        ('sglang:adaptive_spec_rounds_total{position="1"}', "no label"),
        ("sum by (position) (sglang:adaptive_spec_rounds_total)", "no label"),
        ("sum by (tier) (sum(sglang:adaptive_spec_rounds_total))", "no label"),
        (
            "sum by (tier) (sglang:adaptive_spec_rounds_total) / sum(sglang:num_running_reqs)",
            "never",
        ),
        ("sglang:num_running_reqs unless on (tier) sglang:adaptive_spec_rounds_total", "no label"),
    ],
)
def test_the_check_finds_what_is_not_exported(expr: str, wrong: str) -> None:
    with pytest.raises(Wrong, match=wrong):
        check(expr)


def test_a_query_with_another_name_or_label_is_found_in_every_expression() -> None:
    for asks, expr in queries():
        for old, new in (("_total", "_count"), ("model_name", "model")):
            if old in expr:
                with pytest.raises(Wrong):
                    check(expr.replace(old, new))
        assert {"_total", "model_name"} & set(re.findall(r"_total|model_name", expr)), asks


@pytest.mark.parametrize("escaping", ["underscores", "allow-utf-8"])
def test_what_is_scraped_as_openmetrics_gets_the_names_that_are_asked_for(escaping: str) -> None:
    """The client library replaces colons for a scraper that asks so; prometheus.yml repairs it."""
    registry = prometheus_client.CollectorRegistry()
    for name in labels_by_metric():
        prometheus_client.Counter(name, "any", registry=registry)
    text = openmetrics.generate_latest(registry, escaping=escaping).decode()
    scraped = {line.split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    (rule,) = job["metric_relabel_configs"]
    pattern, new = rule["regex"], rule["replacement"].replace("$1", r"\1")
    stored = {re.sub(f"^(?:{pattern})$", new, name) for name in scraped}
    assert {name.removesuffix("_total") for name in labels_by_metric()} <= {
        name.removesuffix("_total") for name in stored
    }


def test_the_metrics_of_the_host_are_in_its_source() -> None:
    host = installed_host()
    assert host is not None
    source = (host.root / "sglang/srt/observability/metrics_collector.py").read_text()
    for name in HOST_METRICS:
        assert f'name="{name}"' in source
    for label in OF_HOST:
        assert f'"{label}": ' in source


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) >= 10
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert re.fullmatch(r"[A-Z][^.]+\.", panel["description"]), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_says_what_is_wrong_what_to_do_and_has_its_section(
    alert: Mapping[str, Any],
) -> None:
    assert alert["for"]
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["summary"].endswith(".")
    assert len(alert["annotations"]["description"].split()) > 10
    assert alert["alert"].lower() in anchors(PAGE)


@pytest.mark.full
def test_every_alert_fires_on_its_sign_and_on_no_other() -> None:
    assert shutil.which("promtool"), "promtool is missing: it comes with Debian's prometheus"
    ran = subprocess.run(
        ["promtool", "test", "rules", str(CASES)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_cases_try_every_alert() -> None:
    assert set(re.findall(r"alertname=\"(\w+)\"", CASES.read_text())) == {
        alert["alert"] for alert in ALERTS
    }
