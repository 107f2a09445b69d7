"""What the installed finders answer, and above all what they leave to others."""

import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import files
from pathlib import Path
from types import ModuleType

import pytest
import sglang_cpu_host
import torch
from sglang_cpu_host import kernels

PACKAGE = Path(__file__).resolve().parents[2] / "patches" / "cpu"
# Importing the real SGLang takes seconds; the finder only asks whether someone did.
AS_SGLANG = "import sys, types; sys.modules['sglang'] = types.ModuleType('sglang')\n"


def run(code: str, python: Path | str = sys.executable, *options: str) -> str:
    """Runs code in a fresh interpreter and returns what it printed."""
    command = [str(python), *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_stub(code: str) -> str:
    """Runs code where nothing is installed but this package's folder: triton is never real."""
    start = f"import sys; sys.path.insert(0, {str(PACKAGE)!r})\n"
    install = "import sglang_cpu_host.finder as finder; finder.install()\n"
    return run(start + install + AS_SGLANG + code, sys.executable, "-I", "-S")


def test_interpreter_start_installs_the_finder_last_and_imports_no_torch():
    code = """
import sys
finders = [type(finder).__name__ for finder in sys.meta_path]
assert finders[-1] == "StandInFinder" and finders.count("StandInFinder") == 1, finders
print(sorted({"torch", "torchvision", "sglang", "sglang_cpu_host.kernels"} & sys.modules.keys()))
"""
    assert run(code) == "[]"


def test_the_stand_ins_are_not_folders_that_a_path_could_find():
    names = {str(path).split("/")[0] for path in files("sglang-cpu-host") or []}
    assert "sglang_cpu_host.pth" in names
    assert not {"sgl_kernel", "triton", "torchvision", "sitecustomize.py"} & names


@pytest.mark.parametrize("name", ["sgl_kernel", "triton"])
@pytest.mark.parametrize("place", ["insert(0, {0!r})", "append({0!r})"], ids=["first", "last"])
def test_a_package_anywhere_on_the_path_wins(name, place, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("ORIGIN = 'real'\n")
    path = f"sys.path.{place.format(str(tmp_path))}\n"
    assert run(AS_SGLANG + path + f"import {name}; print({name}.ORIGIN)") == "real"


def test_a_real_package_without_a_submodule_gets_none_from_the_stand_in(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import triton
try:
    import triton.language
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(AS_SGLANG + code) == "triton.language"


def wheel(folder: Path, name: str) -> Path:
    """A minimal real wheel of a package."""
    path = folder / f"{name}-9.9-py3-none-any.whl"
    info = f"{name}-9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "ORIGIN = 'real'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}/__init__.py,,\n{info}/RECORD,,\n")
    return path


def test_a_real_package_installed_later_wins_and_its_removal_brings_the_stand_in_back(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run("import sysconfig; print(sysconfig.get_path('purelib'))", python))
    shutil.copytree(Path(str(sglang_cpu_host.__file__)).parent, site / "sglang_cpu_host")
    shutil.copy(PACKAGE / "sglang_cpu_host.pth", site)

    def origin(name: str) -> str:
        find = f"import importlib.util as u; spec = u.find_spec({name!r})\n"
        return run(AS_SGLANG + find + "print(type(spec.loader).__name__)", python)

    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    for name in ("sgl_kernel", "triton"):
        assert origin(name) == "StandInLoader"
        install = [*pip, "install", "--no-index", "--no-deps", str(wheel(tmp_path, name))]
        subprocess.run(install, check=True)
        assert origin(name) == "SourceFileLoader"
        assert run(f"import {name}; print({name}.ORIGIN)", python) == "real"
        subprocess.run([*pip, "uninstall", "--yes", name], check=True)
        assert origin(name) == "StandInLoader"


def test_outside_sglang_nothing_is_found():
    code = """
import importlib.util
del sys.modules["sglang"]
print([importlib.util.find_spec(name) for name in ("sgl_kernel", "triton")])
"""
    assert run_stub(code) == "[None, None]"


def test_triton_kernels_can_be_defined_as_the_host_does():
    code = """
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction
from triton.compiler.errors import CompilationError

@triton.autotune(configs=[triton.Config({"BLOCK": 8}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: True})
@triton.jit
def kernel(pointer, n: tl.constexpr, BLOCK: tl.constexpr):
    pass

@triton.jit(do_not_specialize=["n"])
def with_options(n):
    pass

assert tl.constexpr(3).value == 3 and issubclass(CompilationError, Exception)
assert (triton.cdiv(7, 2), triton.next_power_of_2(5), triton.next_power_of_2(8)) == (4, 8, 8)
for launch in (lambda: kernel[(1,)](1, n=2, BLOCK=8), lambda: with_options(1)):
    try:
        launch()
    except RuntimeError as error:
        print(error)
"""
    first, second = run_stub(code).splitlines()
    assert "Triton kernel kernel was launched" in first
    assert "Triton kernel with_options was launched" in second


def test_the_triton_stub_switches_dynamo_off_even_when_dynamo_came_first():
    code = """
import os, types
config = sys.modules["torch._dynamo.config"] = types.ModuleType("torch._dynamo.config")
config.disable = False
import triton
print(os.environ["TORCHDYNAMO_DISABLE"], config.disable)
"""
    assert run_stub("import os; os.environ.pop('TORCHDYNAMO_DISABLE', None)\n" + code) == "1 True"


@pytest.mark.full  # imports torch anew
def test_torchvision_imports_with_its_operators_declared():
    code = "import torch, torchvision; print(torch.ops.torchvision.nms.default._schema.name)"
    assert run(code) == "torchvision::nms"


def test_an_operator_that_torchvision_did_load_is_left_alone():
    code = """
import torch
loaded = torch.library.Library("torchvision", "DEF")
loaded.define("nms(Tensor real) -> Tensor")
from sglang_cpu_host.finder import declare_torchvision_ops
kept = declare_torchvision_ops()
print([len(getattr(torch.ops.torchvision, op).default._schema.arguments) for op in ("nms", "qnms")])
"""
    assert run(code) == "[1, 3]"


def test_a_machine_with_a_gpu_is_told_to_install_the_real_kernels(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    module = ModuleType("sgl_kernel")
    with pytest.raises(ImportError, match="install sglang-kernel"):
        kernels.fill(module)
    assert not hasattr(module, "verify_tree_greedy_cpu")
