"""The rules of the tree itself: the length of functions, and what the package loads."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("sglang_adaptive_spec", "patches", "tools", "examples", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
MAX_FUNCTION_LINES = 60


def test_no_function_outgrows_its_reader() -> None:
    assert len(SOURCES) > 40
    too_long = [
        f"{path.relative_to(ROOT)}:{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_policy_config_controller_simulator_and_cli_load_neither_torch_nor_sglang() -> None:
    script = (
        "import sys\n"
        "import sglang_adaptive_spec.config.schema, sglang_adaptive_spec.loop.controller\n"
        "import sglang_adaptive_spec.policy.ema, sglang_adaptive_spec.policy.goodput\n"
        "import sglang_adaptive_spec.policy.build, sglang_adaptive_spec.loop.meter\n"
        "import sglang_adaptive_spec.simulate.command, sglang_adaptive_spec.trace.record\n"
        "import sglang_adaptive_spec.cli, sglang_adaptive_spec.plugin\n"
        "import sglang_adaptive_spec.operate.explain.text\n"
        "print([name for name in ('torch', 'triton', 'sglang') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_no_text_names_an_issue_by_its_number() -> None:
    """Whoever reads the repository does not have the tracker."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    named = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in (*SOURCES, *pages)
        if (found := re.search(r"\bissues? \d+", path.read_text(), re.IGNORECASE))
    ]
    assert named == []
