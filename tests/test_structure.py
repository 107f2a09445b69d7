"""The rules of the tree itself: functions, import boundaries, what the package loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sglang_adaptive_spec"
SOURCES = sorted(
    path
    for folder in ("sglang_adaptive_spec", "patches", "tools", "examples", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
MAX_FUNCTION_LINES = 60


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_outgrows_its_reader(path: Path) -> None:
    text = path.read_text()
    too_long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert too_long == []


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.partition(".")[0])
    return roots


def test_only_host_imports_sglang() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if (PACKAGE / "host") not in path.parents]
    assert [path.name for path in outside if "sglang" in imported_roots(path)] == []


def test_only_host_and_the_timing_of_rounds_may_import_torch() -> None:
    allowed = {*(PACKAGE / "host").rglob("*.py"), PACKAGE / "loop" / "timing.py"}
    offenders = [
        path.name
        for path in set(PACKAGE.rglob("*.py")) - allowed
        if imported_roots(path) & {"torch", "triton"}
    ]
    assert offenders == []


def test_policy_config_controller_simulator_and_cli_load_neither_torch_nor_sglang() -> None:
    script = (
        "import sys\n"
        "import sglang_adaptive_spec.config.schema, sglang_adaptive_spec.loop.controller\n"
        "import sglang_adaptive_spec.policy.ema, sglang_adaptive_spec.policy.goodput\n"
        "import sglang_adaptive_spec.policy.build, sglang_adaptive_spec.loop.meter\n"
        "import sglang_adaptive_spec.simulate.command, sglang_adaptive_spec.trace.record\n"
        "import sglang_adaptive_spec.cli, sglang_adaptive_spec.plugin\n"
        "print([name for name in ('torch', 'triton', 'sglang') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ran.stdout.strip() == "[]"
