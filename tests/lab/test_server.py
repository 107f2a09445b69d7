"""A server finds the plugins meant for its arm, and ends with everything that it started."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.arms import ALL_TIERS, ARMS
from benchmarks.lab.models import ModelPair, prompt_ids, write_dummy_pair
from benchmarks.lab.server import GROUP, OURS, PLUGINS, Server, announce_plugins, server_environment
from tests.hosts import REPO


def test_an_announced_plugin_is_found_as_an_installed_one_would_be(tmp_path: Path) -> None:
    announce_plugins(tmp_path)
    for name, target in PLUGINS.items():
        (found,) = importlib.metadata.distributions(path=[str(tmp_path / name)])
        (entry,) = found.entry_points
        assert (entry.group, entry.name, entry.value) == (GROUP, name, target)


def plugins_seen(environment: dict[str, str]) -> set[str]:
    """The plugin names that a server in this environment would load."""
    listing = "from importlib.metadata import entry_points; import json, os\n"
    listing += f"names = {{e.name for e in entry_points(group={GROUP!r})}}\n"
    listing += "allowed = os.environ.get('SGLANG_PLUGINS')\n"
    listing += "print(json.dumps(sorted(names & set(allowed.split(',')) if allowed else names)))"
    command = [sys.executable, "-c", listing]
    return set(json.loads(subprocess.run(command, env=environment, capture_output=True).stdout))


@pytest.mark.parametrize("with_ours", [True, False])
def test_our_plugin_is_in_our_arms_only_and_the_measuring_one_in_all(
    tmp_path: Path, with_ours: bool
) -> None:
    announce_plugins(tmp_path)
    seen = plugins_seen(server_environment(tmp_path, with_ours, {}))
    assert "bench_measure" in seen
    assert (OURS in seen) == with_ours


def test_stopping_ends_the_whole_process_group(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); "
    child += "print(p.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    Server(process, "http://127.0.0.1:9", tmp_path / "control.json", tmp_path / "log").stop()
    process.stdout.close()
    assert process.wait(timeout=60) != 0
    for _ in range(600):
        try:
            stat = Path(f"/proc/{grandchild}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        if stat.rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(grandchild, 9)
    pytest.fail("the grandchild outlived its group")


def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no such model\n")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    server = Server(process, "http://127.0.0.1:9", tmp_path / "control.json", log)
    with pytest.raises(RuntimeError, match="no such model"):
        server.wait_ready(time.monotonic(), 5.0)


def test_the_arms_differ_in_speculation_alone(tmp_path: Path) -> None:
    pair = ModelPair(tmp_path / "target", tmp_path / "draft")
    assert ARMS["none"].arguments(pair, tmp_path) == []
    for name in ("static-3", "builtin", "ema", "ema-alternate"):
        arguments = ARMS[name].arguments(pair, tmp_path)
        flags = [word for word in arguments if word.startswith("--")]
        assert all(flag.startswith("--speculative-") for flag in flags)
        assert str(pair.draft) in arguments


def test_arms_with_tiers_of_their_own_write_them_to_a_file(tmp_path: Path) -> None:
    pair = ModelPair(tmp_path, tmp_path)
    path = Path(ARMS["ema-alternate"].arguments(pair, tmp_path)[-1])
    assert json.loads(path.read_text()) == json.loads(json.dumps(ALL_TIERS))


def test_every_arm_gets_the_same_prompts_and_no_two_repeats_do() -> None:
    assert prompt_ids(3, 16, seed=1) == prompt_ids(3, 16, seed=1)
    assert prompt_ids(3, 16, seed=1) != prompt_ids(3, 16, seed=2)
    assert {len(prompt) for prompt in prompt_ids(3, 16, seed=1)} == {16}


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def test_the_dummy_pair_is_a_target_and_an_eagle3_head_of_its_width(tmp_path: Path) -> None:
    pair = write_dummy_pair(tmp_path)
    target, draft = config_of(pair.target), config_of(pair.draft)
    assert draft["architectures"] == ["LlamaForCausalLMEagle3"]
    assert draft["hidden_size"] == target["hidden_size"]
    assert (target["num_hidden_layers"], draft["num_hidden_layers"]) == (32, 1)


def test_a_small_model_drafts_for_the_same_vocabulary_under_its_own_algorithm(
    tmp_path: Path,
) -> None:
    pair = write_dummy_pair(tmp_path, "standalone")
    target, draft = config_of(pair.target), config_of(pair.draft)
    assert draft["vocab_size"] == target["vocab_size"]
    assert 1 < draft["num_hidden_layers"] < target["num_hidden_layers"]
    assert "STANDALONE" in ARMS["static-3"].arguments(pair, tmp_path)
    assert "ADAPTIVE_EAGLE" in ARMS["goodput"].arguments(pair, tmp_path)
    with pytest.raises(ValueError, match="adaptive mode does not serve STANDALONE: no builtin"):
        ARMS["builtin"].arguments(pair, tmp_path)


def test_an_interrupt_ends_servers_that_a_thread_waits_for(tmp_path: Path) -> None:
    """A benchmark whose client thread would wait for ever on its server."""
    script = """
import signal, subprocess, threading
from pathlib import Path
from benchmarks.lab import server
signal.signal(signal.SIGINT, server.end_servers)
process = subprocess.Popen(["sleep", "60"], start_new_session=True)
one = server.Server(process, "http://127.0.0.1:9", Path("control"), Path("log"))
server._running.append(one)
client = threading.Thread(target=process.wait)
client.start()
print(process.pid, flush=True)
try:
    client.join()
finally:
    client.join()
"""
    benchmark = subprocess.Popen([sys.executable, "-c", script], cwd=REPO, stdout=subprocess.PIPE)
    assert benchmark.stdout is not None
    served = int(benchmark.stdout.readline())
    benchmark.send_signal(signal.SIGINT)
    assert benchmark.wait(timeout=60) != 0
    benchmark.stdout.close()
    assert not Path(f"/proc/{served}").exists()
