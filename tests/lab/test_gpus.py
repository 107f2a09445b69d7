"""The commands for the GPUs of a machine: benchmarks know their arguments, mistakes are refused."""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.lab.fleet import PORT_STEP
from benchmarks.studies.backends import CASES
from benchmarks.studies.real_text import summary as real_text
from tests.hosts import REPO

SCRIPT = REPO / "benchmarks" / "gpus.sh"
# A python3 that only says how it was called, and ends when MEET calls were made.
RECORDER = f"""#!{sys.executable} -S
import json, os, sys, time
path, wanted = os.environ["CALLS"], int(os.environ.get("MEET", "1"))
with open(path, "a") as calls:
    given = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TINY_HEAD_DIM"]
    calls.write(json.dumps([*given, sorted(os.sched_getaffinity(0)), *sys.argv[1:]]) + "\\n")
for _ in range(2000):
    if open(path).read().count("\\n") >= wanted:
        sys.exit()
    time.sleep(0.01)
sys.exit(9)
"""
STREAMS = (
    *(
        "matrix-a",
        "matrix-b",
        "matrix-c",
        "matrix-d",
        "transition-i",
        "transition-j",
        "transition-k",
        "transition-l",
        "two-mixed",
        "two-alternating",
    ),
    *("flashinfer-a", "flashinfer-b", "flashinfer-c", "flashinfer-d"),
    *("small-a", "small-b", "small-c", "small-d"),
    *("kinds-a", "kinds-b"),
    *("starts-a", "starts-b", "starts-c", "starts-d"),
    *("transition-real", "transition-alternating", "ramp", "ramp-2", "ramp-3", "overhead"),
    *("defaults-pair", "defaults-builtin"),
    *("sampling", "sampling-of-host", "sampling-packed"),
    *(
        "backends",
        "backends-mla",
        "backends-table",
        "backends-whole",
        "backends-packed",
        "backends-confident",
        "backends-tp",
    ),
    *("standalone-a", "standalone-b"),
    *("zero-8b", "zero-small", "texts-plans"),
    *("text-all", "text-a", "text-b", "text-c", "text-d", "text-sampled"),
    *("table-a", "table-b"),
    *("text-ramp-1", "text-ramp-2", "text-ramp-3", "text-kinds-a", "text-kinds-b"),
)
FIRST_EPHEMERAL_PORT = 32768
PORTS_APART = 300


class Call(NamedTuple):
    """How the script called a benchmark."""

    gpus: str
    head_dim: str  # of miniatures
    cores: list[int]
    module: str
    args: Any  # as the benchmark's own parser reads them


class Ran(NamedTuple):
    """A run of the script."""

    calls: list[Call]
    returncode: int
    stdout: str
    stderr: str


def run_script(tmp_path: Path, *arguments: str, **environment: str) -> Ran:
    """Runs the script; every benchmark is only recorded."""
    recorder, calls, pair = tmp_path / "bin" / "python3", tmp_path / "calls", tmp_path / "a pair"
    for folder in (recorder.parent, pair / "target"):
        folder.mkdir(parents=True, exist_ok=True)
    (pair / "prompts.json").touch()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    calls.write_text("")
    path = os.pathsep.join((str(recorder.parent), os.environ["PATH"]))
    given = {"OUT": str(tmp_path / "out"), "SHA": "abc", "PAIR": str(pair), "CALLS": str(calls)}
    given["BEFORE"] = "def=before"
    whole = {**os.environ, **given, "PATH": path, **environment}
    ran = subprocess.run([str(SCRIPT), *arguments], env=whole, capture_output=True, text=True)
    recorded = [call_of(*json.loads(line)) for line in calls.read_text().splitlines()]
    return Ran(recorded, ran.returncode, ran.stdout, ran.stderr)


def call_of(
    gpus: str, head_dim: str, cores: list[int], dash_m: str, module: str, *arguments: str
) -> Call:
    assert dash_m == "-m"
    study = importlib.import_module(module)
    if hasattr(study, "__path__"):
        study = importlib.import_module(f"{module}.__main__")
    args = study.parser().parse_args(arguments)
    return Call(gpus, head_dim, cores, module.removeprefix("benchmarks.studies."), args)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """Returns the call of every stream."""
    ran = run_script(tmp_path_factory.mktemp("streams"), "0,1=" + "+".join(STREAMS))
    assert ran.returncode == 0, ran.stderr
    return dict(zip(STREAMS, ran.calls, strict=True))


def arms(calls: Iterable[Call]) -> list[str]:
    return sorted(itertools.chain.from_iterable(call.args.arms for call in calls))


def test_every_stream_is_known_and_gets_commit_folder_and_deadline(
    calls: dict[str, Call], tmp_path: Path
) -> None:
    allowed = run_script(tmp_path, "0=other").stderr.rpartition(": ")[2].rstrip(".\n").split()
    assert allowed == sorted(STREAMS)
    for call in calls.values():
        assert (call.gpus, call.args.git_sha, call.args.out.name) == ("0,1", "abc", "out")
        assert 400 <= call.args.deadline <= 520  # less what the script takes before it


def test_ports_never_meet_and_are_none_that_the_system_hands_out(calls: dict[str, Call]) -> None:
    ports = sorted(call.args.port for call in calls.values())
    assert ports[-1] + PORTS_APART <= FIRST_EPHEMERAL_PORT
    assert min(after - before for before, after in itertools.pairwise(ports)) >= PORTS_APART
    fleets = [len(getattr(call.args, "arms", ())) for call in calls.values()]
    assert max(fleets) * PORT_STEP <= PORTS_APART


def test_no_two_streams_write_one_file(calls: dict[str, Call]) -> None:
    assert len({(call.module, call.args.tag) for call in calls.values()}) == len(STREAMS)


def test_the_matrix_has_every_arm_once(calls: dict[str, Call]) -> None:
    from benchmarks.stats.windows import MATRIX_ARMS

    assert arms([calls["matrix-a"], calls["matrix-b"]]) == sorted(MATRIX_ARMS)
    # On four GPUs the next visit goes beside it: each arm on another GPU than before.
    assert calls["matrix-c"].args.arms == calls["matrix-b"].args.arms
    assert calls["matrix-d"].args.arms == calls["matrix-a"].args.arms
    assert [calls[f"matrix-{one}"].args.first_repeat for one in "abcd"] == [1, 1, 2, 2]
    for name in ("flashinfer", "small"):  # one visit on four GPUs
        four = [calls[f"{name}-{one}"] for one in "abcd"]
        assert arms(four) == sorted(MATRIX_ARMS)
        assert all("goodput" not in call.args.arms or "none" in call.args.arms for call in four)


def test_the_transitions_have_every_cell_and_arm_once(calls: dict[str, Call]) -> None:
    from benchmarks.studies.transition.summary import CELLS, MIN_REPEATS, NEEDED_ARMS

    names = [f"transition-{one}" for one in ("i", "j", "real", "alternating")]
    transitions = [calls[name] for name in names]
    found = sorted(
        (f"{concurrency} {workload}", arm)
        for call in transitions
        for concurrency in call.args.concurrency
        for workload in call.args.workloads
        for arm in call.args.arms
    )
    assert found == sorted(itertools.product(CELLS, NEEDED_ARMS))
    assert {call.args.repeats for call in transitions} == {MIN_REPEATS}
    # On four GPUs the next passes go beside them: each arm on another GPU than before.
    for later, arm in (("k", "static-5"), ("l", "goodput")):
        assert arm in calls[f"transition-{later}"].args.arms
        assert calls[f"transition-{later}"].args.first_repeat == 1 + MIN_REPEATS


def test_texts_have_known_cases_and_miniatures_that_a_gpu_has_kernels_for(
    calls: dict[str, Call],
) -> None:
    texts = {name: call for name, call in calls.items() if call.module == "backends"}
    assert {case for call in texts.values() for case in call.args.cases} <= set(CASES)
    assert {call.head_dim for call in texts.values()} == {"64"}
    for stream, drafter in (("backends-table", "ngram"), ("backends-whole", "standalone")):
        wanted = tuple(f"{backend}-llama-{drafter}" for backend in ("default", "flashinfer"))
        assert texts[stream].args.cases == wanted


def test_a_transition_can_be_split(tmp_path: Path) -> None:
    (call,) = run_script(tmp_path, "0=transition-i", CONCURRENCY="16,2", REPEATS="2").calls
    assert (call.args.concurrency, call.args.repeats) == ((16, 2), 2)


def test_the_pair_goes_to_those_that_need_it(calls: dict[str, Call]) -> None:
    with_pair = {name for name, call in calls.items() if call.args.target is not None}
    real = {"transition-real", "transition-alternating", "two-mixed", "two-alternating"}
    real |= {name for name in STREAMS if name.startswith(("text-", "table-"))}
    small = {
        "sampling",
        "sampling-of-host",
        "sampling-packed",
        "backends",
        "backends-packed",
        "backends-confident",
        *real,
    }
    assert with_pair == {*small, "zero-small"}
    assert {calls[name].args.prompts.parts[-2:] for name in small} == {("a pair", "prompts.json")}


def test_an_earlier_commit_goes_to_those_that_serve_it(
    calls: dict[str, Call], tmp_path: Path
) -> None:
    given = {name for name, call in calls.items() if getattr(call.args, "before", None)}
    assert given == {"zero-small"}
    ran = run_script(tmp_path, "0=zero-small", BEFORE="")
    assert ran.returncode == 2
    assert "BEFORE is '', allowed is COMMIT=FOLDER" in ran.stderr


def test_a_later_visit_is_told_who_was_far_behind(tmp_path: Path) -> None:
    (first,) = run_script(tmp_path, "0=text-a").calls
    assert first.args.earlier == []
    (later,) = run_script(tmp_path, "0=text-a", EARLIER="one.json two.json").calls
    assert later.args.earlier == [Path("one.json"), Path("two.json")]


def test_arguments_run_at_the_same_time_on_their_own_gpus(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "0=ramp", "1=overhead:200", "2,3=backends-tp", MEET="3")
    assert "ended with status" not in ran.stdout
    where = {call.module: call.gpus for call in ran.calls}
    assert where == {"ramp": "0", "overhead": "1", "backends": "2,3"}
    logs = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert logs == ["backends-tp.txt", "overhead.txt", "ramp.txt"]


def test_arguments_at_the_same_time_share_no_core(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if cores != set(range(len(cores))) or len(cores) < 2:
        pytest.skip(f"cores {sorted(cores)} cannot be shared out")
    ran = run_script(tmp_path, "0=ramp", "1=overhead", MEET="2")
    first, second = (set(call.cores) for call in ran.calls)
    assert len(first) == len(second) == len(cores) // 2
    assert not first & second
    (alone,) = run_script(tmp_path, "0=ramp").calls
    assert set(alone.cores) == cores
    (named,) = run_script(tmp_path, "0=ramp", CORES="1").calls
    assert named.cores == [1]


def test_streams_of_an_argument_run_one_after_the_other(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "0=overhead:330+backends")
    overhead, backends = ran.calls
    assert (overhead.module, overhead.args.deadline) == ("overhead", 330 - 45)
    assert backends.module == "backends"
    assert 505 <= backends.args.deadline <= 520
    assert (tmp_path / "out" / "overhead_backends.txt").exists()


def test_a_stream_may_not_take_more_than_is_left(tmp_path: Path) -> None:
    (call,) = run_script(tmp_path, "0=ramp:900", LIMIT_S="300").calls
    assert call.args.deadline <= 300 - 25 - 45


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "0=ramp", "1=overhead:150", LIMIT_S="150")
    assert (ran.calls, ran.returncode) == ([], 1)
    for name in ("ramp", "overhead"):
        said = rf"{name}: left out for want of time, 12\d s of at least 140"
        assert re.search(said, (tmp_path / "out" / f"{name}.txt").read_text())
        assert re.search(said, ran.stdout)


def test_a_stream_that_fails_is_said_and_the_next_runs(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "0=ramp+overhead", CALLS="/nowhere/calls")
    assert "ramp: ended with status 1" in ran.stdout
    assert "overhead: ended with status 1" in ran.stdout
    assert ran.returncode == 1


FORM = "GPUS=STREAM[:SECONDS][+STREAM[:SECONDS]...]"


@pytest.mark.parametrize(
    ("arguments", "got", "allowed"),
    [
        ([], "no argument", FORM),
        (["ramp"], "'ramp'", FORM),
        (["gpu0=ramp"], "'gpu0=ramp'", FORM),
        (["0=ramp,overhead"], "'0=ramp,overhead'", FORM),
        (["0=ramp+"], "'0=ramp+'", FORM),
        (["0=ramp:soon"], "'0=ramp:soon'", FORM),
        (["0=ramp:99"], "'0=ramp:99'", "SECONDS from 140"),
        (["0=ramp:139"], "'0=ramp:139'", "SECONDS from 140"),
        (["0=ramp", "1=overheat"], "no stream 'overheat'", "overhead ramp"),
        (["0=ramp", "0=overhead"], "'0=overhead': 0 is given twice", "once"),
        (["0,0=backends-tp"], "0 is given twice", "once"),
        (["0=ramp", "1=overhead+ramp"], "ramp is given twice", "once"),
        (["1=backends-tp"], "backends-tp has 1 GPU", "two or more"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(
    arguments: list[str], got: str, allowed: str, tmp_path: Path
) -> None:
    ran = run_script(tmp_path, *arguments)
    assert (ran.returncode, ran.calls, ran.stdout) == (2, [], "")
    assert got in ran.stderr
    assert allowed in ran.stderr.partition("allowed")[2]
    assert not (tmp_path / "out").exists()


def test_streams_of_real_text_share_out_the_traffic_and_repeat_no_visit(
    calls: dict[str, Call], tmp_path: Path
) -> None:
    visits = [[calls[f"text-{letter}"].args for letter in letters] for letters in ("ab", "cd")]
    for texts in visits:
        traffic = sorted(itertools.chain.from_iterable(each.traffic for each in texts))
        assert traffic == sorted((*real_text.DOMAINS, *real_text.OF_ALL))
    first, second = (texts[0] for texts in visits)
    assert (first.first_repeat, second.first_repeat) == (1, 1 + first.repeats)
    (again,) = run_script(tmp_path, "0=text-a", VISIT="2").calls
    assert again.args.first_repeat == second.first_repeat
    assert again.args.tag == second.tag != first.tag


def test_a_pair_brings_its_head_and_its_own_context(calls: dict[str, Call], tmp_path: Path) -> None:
    assert calls["text-a"].args.draft is None  # SmolLM2's
    (tmp_path / "a pair" / "head").mkdir(parents=True)
    (call,) = run_script(tmp_path, "0=text-ramp-1").calls
    assert call.args.draft == tmp_path / "a pair" / "head"
    texts = [call for name, call in calls.items() if name.startswith("text-")]
    assert {call.args.context_length for call in texts if call.args.target} == {0}


@pytest.mark.parametrize("variable", ["OUT", "SHA", "PAIR", "LIMIT_S"])
def test_a_wrong_variable_is_refused_before_anything_starts(variable: str, tmp_path: Path) -> None:
    wrong = {"LIMIT_S": "ten minutes"}.get(variable, "")
    ran = run_script(tmp_path, "0=ramp+sampling", **{variable: wrong})
    assert (ran.returncode, ran.calls, ran.stdout) == (2, [], "")
    assert f"{variable} is '{wrong}', allowed is" in ran.stderr


def test_a_folder_that_is_no_pair_is_refused_only_where_one_is_needed(tmp_path: Path) -> None:
    assert run_script(tmp_path, "0=backends", PAIR="nowhere").returncode == 2
    assert len(run_script(tmp_path, "0=ramp", PAIR="nowhere").calls) == 1
