"""What the pages name exists: flags, paths, commands, configs, log lines, keys, counters."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config, parse_config
from sglang_adaptive_spec.contract.versions import SUPPORTED, TESTED, installed_host
from sglang_adaptive_spec.loop.counters import RoundCounters
from sglang_adaptive_spec.loop.meter import RoundMeter, policy_state
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.settings import DEFAULTS
from sglang_adaptive_spec.tiers import PLAIN_TIER, DecodeBatch, Plan, RoundTime
from tests.docs.pages import (
    INLINE_CODE,
    code_blocks,
    code_spans,
    first_column,
    name_of,
    pages,
    section,
)
from tests.hosts import REPO

PACKAGE = REPO / "sglang_adaptive_spec"
MONITORING = (REPO / "docs" / "monitoring.md").read_text()
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
TOP_LEVEL = ("sglang_adaptive_spec", "tests", "patches", "docs", "examples", "benchmarks", "tools")
IN_PACKAGE = tuple(f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir())
WRITTEN_BY_A_RUN = ("benchmarks/results",)
# Commands of programs whose flags are made in a loop; their own tests parse them.
OWN_COMMAND = re.compile(r"python -m (?:benchmarks|examples)\.(?:[^\n]*\\\n)*[^\n]*")


@cache
def known_flags() -> set[str]:
    """Every flag of the installed host and of this repository's own programs."""
    host = installed_host()
    assert host is not None
    fields = (host.root / "sglang/srt/arg_groups/fields").glob("*.py")
    names = {name for path in fields for name in re.findall(r"^    (\w+):", path.read_text(), re.M)}
    assert "speculative_adaptive_config" in names
    ours = {
        flag
        for folder in ("sglang_adaptive_spec", "examples", "benchmarks", "tools")
        for path in (REPO / folder).rglob("*.py")
        for flag in re.findall(r"\"(--[a-z-]+)\"", path.read_text())
    }
    return {f"--{name.replace('_', '-')}" for name in names} | ours


@cache
def strings_of_the_package() -> str:
    """Every string in the package's source, implicit concatenations joined."""
    return "\n".join(
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_flag_that_a_page_names_exists(page: Path) -> None:
    named = FLAG.findall(OWN_COMMAND.sub("", page.read_text()))
    assert set(named) - known_flags() == set()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    missing = [span for span in code_spans(page.read_text()) if is_missing(span)]
    assert missing == []


def is_missing(span: str) -> bool:
    """Says whether a code span is a path of this repository that is not there."""
    path = span.partition(":")[0].rstrip("/")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", path) or path.startswith(WRITTEN_BY_A_RUN):
        return False
    if path.startswith(IN_PACKAGE) and path.endswith(".py"):
        return not (PACKAGE / path).exists()
    return path.split("/")[0] in TOP_LEVEL and not (REPO / path).exists()


def test_the_check_of_paths_finds_missing_ones() -> None:
    there = ["docs/config.md", "host/serving/worker.py", "srt/gone.py"]
    spans = ["tests/gone.py", "host/gone.py", *there]
    assert [span for span in spans if is_missing(span)] == ["tests/gone.py", "host/gone.py"]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.M))
    text = page.read_text()
    code = [*code_spans(text), *re.findall(r"^(?:    |\t)?(make [a-z-]+)", text, re.M)]
    named = {target for span in code for target in re.findall(r"^make ([a-z-]+)", span)}
    assert named <= targets


def test_every_example_of_a_config_loads() -> None:
    examples = {
        f"{name_of(page)} #{index}": block
        for page in pages()
        for index, block in enumerate(code_blocks(page.read_text(), "json"))
        if "candidate_steps" in block and "ema_accept_len" not in block
    }
    assert examples
    for where, block in examples.items():
        assert parse_config(where, block.encode()).candidate_steps


def test_every_log_line_that_the_docs_show_is_in_the_source() -> None:
    for cell in first_column(section(MONITORING, "Log")):
        shown = INLINE_CODE.findall(cell)[0]
        fragment = max(re.split(r"\.\.\.|\d+", shown), key=len).strip()
        assert fragment in strings_of_the_package(), shown


def test_the_compatibility_page_lists_the_supported_hosts() -> None:
    text = (REPO / "docs" / "compatibility.md").read_text()
    assert tuple(first_column(section(text, "SGLang"))) == TESTED
    assert SUPPORTED in text


def test_the_table_of_server_info_lists_every_key_and_no_other() -> None:
    rows = first_column(section(MONITORING, "/server_info"))
    listed = {key for cell in rows for key in INLINE_CODE.findall(cell)}
    assert without_parents(listed) == keys_of_server_info()


def without_parents(keys: set[str]) -> set[str]:
    """The keys below which nothing is listed."""
    parents = {key[:end].removesuffix("[]") for key in keys for end in dots(key)}
    return {key for key in keys if key.removesuffix(".*") not in parents}


def dots(key: str) -> list[int]:
    return [place for place, letter in enumerate(key) if letter == "."]


def keys_of_server_info() -> set[str]:
    """The keys of `adaptive_spec` with their path, from the code that writes them."""
    state, request, tier = (dict_of(name) for name in ("state", "_options_state", "_tier_state"))
    keys = {*state, *request}
    keys |= {f"tiers[].{key}" for key in tier}
    keys |= {f"switches.{key}" for key in RoundCounters().num_switches}
    keys |= {f"requests.{key}" for key in RoundCounters().num_requests}
    keys |= {f"fallbacks.{key}" for key in keys_in(state["fallbacks"])}
    keys |= {f"seeding.{key}" for key in fields_of("Seeding")}
    keys |= {key for preset in ("conservative", "goodput") for key in keys_of_policy(preset)}
    return without_parents(keys)


def keys_of_policy(preset: str) -> set[str]:
    """What a policy shows of itself after some rounds."""
    policy = build_policy(load_config(preset), 1)
    tiers = policy.ladder.of(1)
    if isinstance(policy, GoodputPolicy):
        for tier in tiers:
            policy.costs.seed(tier, 1, 0, 10.0 + tier.num_steps)
        policy.costs.fit()
        for _ in range(DEFAULTS.run_length.known_rounds):
            policy.learn_time(RoundTime(Plan(PLAIN_TIER), 1, 0, 10.0))
    batch = DecodeBatch(1, ("a",))
    policy.choose(batch)
    state = policy_state(policy, RoundMeter(tiers), batch)
    return set(paths({**state, "cost_table": None}))  # a file's format, not listed key by key


def paths(state: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The leaves of a nested object; keys that are numbers become ``*``."""
    for key, value in state.items():
        if not isinstance(value, Mapping):
            yield prefix.removesuffix(".") if key.isdigit() else prefix + key
        else:
            yield from paths(value, prefix + ("*." if key.isdigit() else f"{key}."))


def fields_of(name: str) -> list[str]:
    """The fields of a class of host/startup/seeding.py, which cannot be imported without a host."""
    tree = ast.parse((PACKAGE / "host" / "startup" / "seeding.py").read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return [part.target.id for part in found.body if isinstance(part, ast.AnnAssign)]


def dict_of(function: str) -> dict[str, ast.expr]:
    """The dict that a function of host/reporting/telemetry.py returns: values by key."""
    tree = ast.parse((PACKAGE / "host" / "reporting" / "telemetry.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
            return next(keys_in(value) for value in returned if isinstance(value, ast.Dict))
    raise AssertionError(f"host/reporting/telemetry.py has no function {function}")


def keys_in(node: ast.expr) -> dict[str, ast.expr]:
    assert isinstance(node, ast.Dict)
    pairs = zip(node.keys, node.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}


def counters_of_the_exporter() -> dict[str, set[str]]:
    """Names, as Prometheus shows them, and labels of the counters in host/reporting/metrics.py."""
    calls = [
        node.args
        for node in ast.walk(ast.parse((PACKAGE / "host" / "reporting" / "metrics.py").read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "counter"
    ]
    assert calls
    return {
        f"sglang:adaptive_spec_{ast.literal_eval(name)}_total": {
            "model_name",
            *map(ast.literal_eval, labels),
        }
        for name, _text, *labels in calls
    }


def test_the_table_of_counters_lists_every_counter_with_its_labels() -> None:
    rows = [line for line in section(MONITORING, "Prometheus").splitlines() if line[:3] == "| `"]
    listed = {}
    for row in rows:
        name, labels = row.split("|")[1:3]
        listed[INLINE_CODE.findall(name)[0]] = set(INLINE_CODE.findall(labels))
    assert listed == counters_of_the_exporter()


@pytest.mark.parametrize("query", code_blocks(MONITORING, "promql"))
def test_every_query_uses_counters_and_labels_that_exist(query: str) -> None:
    counters = counters_of_the_exporter()
    used = set(re.findall(r"sglang:\w+", query))
    assert used
    assert used <= set(counters)
    labels = {*re.findall(r"(\w+)=\"", query), *re.findall(r"by \((\w+)\)", query)}
    for name in used:
        assert labels <= counters[name], name
    bare = re.sub(r"sglang:\w+|\{[^}]*\}|by \([^)]*\)|\[\w+\]", "", query)
    functions = {"sum", "rate", "increase", "scalar"}  # any other word would be read as a metric
    assert set(re.findall(r"[a-z_]+", bare)) <= functions
