"""What is published: a wheel that works where nothing else of this repository is."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.hosts import REPO


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(REPO)], check=True)
    (found,) = folder.glob("*.whl")
    return found


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"sglang_adaptive_spec"}
    held = {name.removeprefix("sglang_adaptive_spec/") for name in names}
    package = REPO / "sglang_adaptive_spec"
    data = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {"py.typed", "simulate/h200-llama-8b.json", "operate/pages/style.css"} <= data
    assert {"contract/sglang.txt", "contract/flashinfer.txt"} <= data
    assert data <= held


def test_the_host_finds_the_plugin_in_it_and_its_commands_run_without_one(
    wheel: Path, tmp_path: Path
) -> None:
    """In a fresh environment with the wheel and what it requires."""
    venv.create(tmp_path / "fresh", with_pip=True)
    scripts = tmp_path / "fresh" / "bin"
    subprocess.run([str(scripts / "pip"), "install", "--quiet", str(wheel)], check=True)
    script = (
        "from importlib.metadata import entry_points\n"
        "(plugin,) = entry_points(group='sglang.srt.plugins')\n"
        "print(plugin.load().__module__)"
    )
    assert run(scripts / "python", "-c", script, cwd=tmp_path).stdout.split() == [
        "sglang_adaptive_spec.plugin"
    ]
    command = scripts / "sglang-adaptive-spec"
    simulated = run(command, "simulate", "--json", "--golden", "steady-high-1", cwd=tmp_path)
    assert json.loads(simulated.stdout)["traces"][0]["oracle_tokens_per_s"] > 0
    checked = run(command, "check", cwd=tmp_path)
    assert checked.returncode == 1
    assert "sglang" in checked.stdout + checked.stderr
