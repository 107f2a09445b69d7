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
SCATTER = "kernels/ops/mamba/mamba_state_scatter_triton.py"
HOOKED = {
    "_attention_backend_platform_fallbacks": (
        "srt/arg_groups/overrides.py",
        plugin.keep_intel_amx,
    ),
    "_disable_overlap_schedule_for_cpu": (
        "srt/arg_groups/speculative_hook.py",
        plugin.keep_overlap_schedule,
    ),
    "gather_spec_extras": (
        "kernels/ops/speculative/gather_spec_extras.py",
        plugin.gather_spec_extras_on_cpu,
    ),
    "get_ngram_corpus_cls": (
        "kernels/ops/speculative/ngram_corpus.py",
        plugin.corpus_without_compiler,
    ),
    "fused_mamba_state_scatter_with_mask": (SCATTER, plugin.scatter_states_on_cpu),
    "fused_conv_window_scatter_with_mask": (SCATTER, plugin.scatter_states_on_cpu),
    "fused_gate_sigmoid_mul_add": (
        "kernels/ops/elementwise/elementwise.py",
        plugin.add_shared_expert_on_cpu,
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", HOOKED)
def test_each_hooked_function_takes_the_parameters_its_hook_expects(name, version):
    path, hook = HOOKED[name]
    source = (host_source(version) / "sglang" / path).read_text()
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    expected = [p for p in inspect.signature(hook).parameters.values() if p.name != "original"]
    (taken,) = ([arg.arg for arg in node.args.args] for node in found)
    assert taken == [parameter.name for parameter in expected[: len(taken)]]
    assert all(parameter.default is None for parameter in expected[len(taken) :])


@pytest.mark.parametrize(
    ("device", "backend", "is_kept"),
    [("cpu", "intel_amx", True), ("cpu", "torch_native", False), ("xpu", "intel_xpu", False)],
)
def test_only_intel_amx_on_cpu_is_kept(device, backend, is_kept):
    view = SimpleNamespace(device=device, attention_backend=backend)
    host_decision = {"attention_backend": "host's choice"}
    decision = plugin.keep_intel_amx(lambda seen: host_decision if seen is view else {}, view)
    assert decision == ({} if is_kept else host_decision)


def test_what_recurrent_layers_need_is_computed_on_a_cpu():
    torch.manual_seed(1)
    x, gate, weight = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    norm = SimpleNamespace(weight=weight, eps=1e-5, hidden_size=4, activation="silu")
    size = (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
    expected = x / size * weight * gate * gate.sigmoid()
    torch.testing.assert_close(plugin.gated_norm_on_cpu(pytest.fail, norm, x, gate), expected)
    routed = torch.ones(3, 4)
    plugin.add_shared_expert_on_cpu(pytest.fail, x, weight, gate, routed)
    share = (x * weight).sum(1, keepdim=True).sigmoid()
    torch.testing.assert_close(routed, 1 + share * gate)


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
