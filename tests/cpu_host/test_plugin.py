"""The hooks on SGLang: they act on CPU only, and each finds its target in every supported host."""

import ast
import inspect
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from sglang_cpu_host import plugin

from tests.hosts import REPO, host_source

VERSIONS = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
HOOKED = {
    "srt/arg_groups/overrides.py": ("_attention_backend_platform_fallbacks", plugin.keep_intel_amx),
    "srt/arg_groups/speculative_hook.py": (
        "_disable_overlap_schedule_for_cpu",
        plugin.keep_overlap_schedule,
    ),
    "kernels/ops/speculative/gather_spec_extras.py": (
        "gather_spec_extras",
        plugin.gather_spec_extras_on_cpu,
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", HOOKED)
def test_each_hooked_function_takes_the_parameters_its_hook_expects(path, version):
    name, hook = HOOKED[path]
    source = (host_source(version) / "sglang" / path).read_text()
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert [[arg.arg for arg in node.args.args] for node in found] == [
        [parameter for parameter in inspect.signature(hook).parameters if parameter != "original"]
    ]


@pytest.mark.parametrize(
    ("device", "backend", "is_kept"),
    [("cpu", "intel_amx", True), ("cpu", "torch_native", False), ("xpu", "intel_xpu", False)],
)
def test_only_intel_amx_on_cpu_is_kept(device, backend, is_kept):
    view = SimpleNamespace(device=device, attention_backend=backend)
    host_decision = {"attention_backend": "host's choice"}
    decision = plugin.keep_intel_amx(lambda seen: host_decision if seen is view else {}, view)
    assert decision == ({} if is_kept else host_decision)


@pytest.mark.parametrize("has_hidden", [True, False])
def test_rows_are_gathered_from_every_relay_buffer(has_hidden):
    buffers = [torch.randn(5, 2), torch.arange(10).view(5, 2), torch.arange(5), torch.randn(5, 3)]
    if not has_hidden:
        buffers[3] = None
    gathered = plugin.gather_spec_extras_on_cpu(None, torch.tensor([4, 0, 4]), *buffers)
    for rows, buffer in zip(gathered, buffers, strict=True):
        if buffer is None:
            assert rows is None
        else:
            assert rows.tolist() == [buffer[i].tolist() for i in (4, 0, 4)]


def test_tensors_of_other_devices_go_to_the_host():
    elsewhere = torch.empty(2, dtype=torch.long, device="meta")
    calls = []
    plugin.skip_on_cpu(lambda *args: calls.append(args), elsewhere, "stream")
    plugin.skip_on_cpu(lambda *args: calls.append(args), torch.empty(1), "stream")
    assert len(calls) == 1
    assert calls[0][0] is elsewhere
    result = plugin.gather_spec_extras_on_cpu(lambda *args: args, elsewhere, 1, 2, 3, None)
    assert result == (elsewhere, 1, 2, 3, None)


@pytest.mark.parametrize("has_overlap", [True, False])
def test_the_hooks_are_those_of_the_ledger(has_overlap, tmp_path):
    assert registered(tmp_path, has_overlap) == ledger_symbols(has_overlap)


def test_the_hooks_stand_back_when_a_real_sgl_kernel_is_installed(tmp_path):
    (tmp_path / "sgl_kernel.py").write_text("")
    assert registered(tmp_path, has_overlap=True) == set()


def registered(first_on_path, has_overlap):
    """The symbols that the plugin hooks, in a process of its own."""
    # The host's registry alone, by its file: importing the host takes seconds.
    registry = host_source("0.5.21") / "sglang" / "srt" / "plugins" / "hook_registry.py"
    code = f"""
import importlib.util, sys, types
sys.path.insert(0, {str(first_on_path)!r})
for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
    sys.modules[name] = types.ModuleType(name)
spec = importlib.util.spec_from_file_location("sglang.srt.plugins.hook_registry", {str(registry)!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from sglang_cpu_host.plugin import register
register()
print(*module.HookRegistry._hooks)
"""
    environment = {
        "SGLANG_CPU_HOST_OVERLAP": str(int(has_overlap)),
        "SGLANG_USE_CPU_ENGINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def ledger_symbols(has_overlap):
    """The symbols in the table of what is changed in the host."""
    ledger = (REPO / "patches" / "cpu" / "README.md").read_text()
    rows = re.findall(r"^\| `((?:sglang|torch)\.[\w.]+)`( \(overlap\))? \|", ledger, re.MULTILINE)
    return {symbol for symbol, needs_overlap in rows if has_overlap or not needs_overlap}
