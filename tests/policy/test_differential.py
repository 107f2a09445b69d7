"""The EMA policy against the host's own, driven for real: same calls, same floats, same decisions.

Mutants of our policy, one changed operator or number each, must all be told from the host.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy import ema
from sglang_adaptive_spec.tiers import DecodeBatch
from tests.hosts import host_source
from tests.policy.cases import random_cases
from tests.policy.mutants import mutant, mutation_points

pytestmark = pytest.mark.full  # imports the real host: seconds per version

HERE = Path(__file__).parent
VERSIONS = ("0.5.21", "0.5.23")
NUM_CASES = 4000
CPU_HOST = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}

Case = dict[str, Any]
Trace = list[list[Any]]


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    return random_cases(NUM_CASES, seed=20)


@pytest.fixture(scope="session")
def replay_on_host(
    cases: list[Case], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Trace]]:
    """Returns a function from a host version to its traces; one subprocess a version."""
    folder = tmp_path_factory.mktemp("differential")
    (folder / "cases.json").write_text(json.dumps(cases))
    traces: dict[str, list[Trace]] = {}

    def replay(version: str) -> list[Trace]:
        if version not in traces:
            traces[version] = _replay(version, folder)
        return traces[version]

    return replay


def _replay(version: str, folder: Path) -> list[Trace]:
    host = host_source(version)
    result = folder / f"{version}.json"
    search_path = os.pathsep.join(filter(None, [str(host), os.environ.get("PYTHONPATH")]))
    driver = [sys.executable, str(HERE / "host_replay.py")]
    subprocess.run(
        [*driver, str(folder / "cases.json"), str(result)],
        env={**os.environ, **CPU_HOST, "PYTHONPATH": search_path},
        cwd=folder,
        check=True,
    )
    answer = json.loads(result.read_text())
    assert Path(answer["module"]).is_relative_to(host), "another host was imported"
    return answer["traces"]


def our_trace(module: Any, case: Case, config: Any) -> Iterator[list[Any]]:
    policy = module.EmaPolicy(config, case["initial_steps"])
    for batch_size, drafts in case["rounds"]:
        batch = DecodeBatch(batch_size, tuple(range(batch_size)))
        steps = policy.choose(batch).tier.num_steps
        changed = policy.update(drafts, batch_size)
        answer = policy.choose(batch).tier.num_steps if changed else None
        slot = policy.describe()[str(policy.ladder.bound(batch_size))]
        yield [steps, answer, slot["ema_accept_len"].hex()]


def first_difference(
    module: Any, cases: list[Case], configs: list[Any], traces: list[Trace]
) -> str | None:
    """Returns where ``module``'s policy first leaves the host's trace, if it does."""
    for number, (case, config, expected) in enumerate(zip(cases, configs, traces, strict=True)):
        ours = our_trace(module, case, config)
        for round_idx, host_round in enumerate(expected):
            our_round = next(ours)
            if our_round != host_round:
                return (
                    f"case {number} round {round_idx}: host {host_round}, ours {our_round}; "
                    f"config {case['config']}, initial steps {case['initial_steps']}, "
                    f"rounds {case['rounds'][: round_idx + 1]}"
                )
    return None


@pytest.fixture(scope="session")
def configs(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    path = tmp_path_factory.mktemp("configs") / "adaptive_spec.json"
    loaded = []
    for case in cases:
        path.write_text(json.dumps({**case["config"], "policy": "ema"}))
        loaded.append(load_config(str(path)))
    return loaded


@pytest.mark.parametrize("version", VERSIONS)
def test_every_decision_and_average_equals_the_hosts(
    version: str,
    cases: list[Case],
    configs: list[Any],
    replay_on_host: Callable[[str], list[Trace]],
) -> None:
    traces = replay_on_host(version)
    assert [len(trace) for trace in traces] == [len(case["rounds"]) for case in cases]
    assert first_difference(ema, cases, configs, traces) is None


def test_the_cases_exercise_the_host(
    cases: list[Case], replay_on_host: Callable[[str], list[Trace]]
) -> None:
    """Agreement is worth something only if the host switched, in every way it can."""
    moves = [
        (steps, answer)
        for trace in replay_on_host(VERSIONS[-1])
        for steps, answer, _ in trace
        if answer is not None
    ]
    ups = sum(new > old for old, new in moves)
    from_zero = sum(old == 0 for old, _ in moves)
    to_zero = sum(new == 0 for _, new in moves)
    empty = sum(not drafts for case in cases for _, drafts in case["rounds"])
    assert min(ups, len(moves) - ups) > 5000
    assert min(from_zero, to_zero) > 800
    assert empty > 5000


@pytest.mark.parametrize(("target", "point"), list(enumerate(mutation_points(ema))))
def test_a_mutated_policy_is_told_from_the_host(
    target: int,
    point: str,
    cases: list[Case],
    configs: list[Any],
    replay_on_host: Callable[[str], list[Trace]],
) -> None:
    try:
        found = first_difference(mutant(ema, target), cases, configs, replay_on_host(VERSIONS[-1]))
    except (IndexError, ZeroDivisionError):
        return  # a mutant that walks off its candidates is told, too
    assert found, f"the differential test does not see this change: {point}"
