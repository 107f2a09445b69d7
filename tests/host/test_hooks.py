"""Hooks of one process: they are applied, once, or the start says which could not be."""

import sys
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest

STEP, KIND = "made_up_host.step", "made_up_host.Kind"


def plus_one(step: Any, value: int) -> int:
    """A hook around `step`."""
    return int(step(value)) + 1


def times_ten(step: Any, value: int) -> int:
    """Another plugin's hook around `step`."""
    return int(step(value)) * 10


@pytest.fixture
def host(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module to hook, and a registry that forgets with the test."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_adaptive_spec.host import hooks

    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(hooks, "_hooked", set())
    monkeypatch.setattr(hooks, "HOOK_TARGETS", {STEP: STEP, KIND: KIND})
    made = ModuleType("made_up_host")
    vars(made).update(step=lambda value: value, Kind=type("Kind", (), {}))
    monkeypatch.setitem(sys.modules, "made_up_host", made)
    return made


def hook_now(*wanted: tuple[str, Any]) -> None:
    """Hooks around each target, as the worker does."""
    from sglang_adaptive_spec.host import hooks

    hooks.hook_now(dict(wanted))


def test_a_hook_is_in_force_at_once_and_only_once(host: Any) -> None:
    hook_now((STEP, plus_one))
    assert host.step(4) == 5
    hook_now((STEP, plus_one))  # a second call
    assert host.step(4) == 5


def test_what_another_plugin_hooked_before_stops_the_start(host: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(STEP, times_ten, HookType.AROUND)
    HookRegistry.apply_hooks()
    problem = rf"could not hook {STEP}: another plugin, or a worker.* SGLANG_PLUGINS names"
    for _ in range(2):  # it is not taken as done either
        with pytest.raises(RuntimeError, match=problem):
            hook_now((STEP, plus_one))
    assert host.step(4) == 40


def test_what_the_host_cannot_hook_stops_the_start(host: Any, caplog: Any) -> None:
    with pytest.raises(RuntimeError, match=rf"could not hook {KIND}.* the log above says why"):
        hook_now((STEP, plus_one), (KIND, plus_one))
    assert "is a class" in caplog.text
