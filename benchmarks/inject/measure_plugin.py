"""A measuring SGLang plugin, loaded in every arm through the host's own HookRegistry.

It measures building between the same two points whatever speculates (before the attention
backends, after the graphs) and, within it, the prefill graphs; counts graph captures, and records
each decode round when its result is processed. The benchmark talks to it through a control file
and `/server_info`: every new command in the file is carried out, and answered, in the next
`get_internal_state`, between rounds. A command may ask for a watch: when the batch has been full
for long enough, a marker file says so, without a question that would disturb the rounds.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.inject.engine import Engine

CONTROL_ENV = "BENCH_CONTROL"  # names the control file
ANSWER_KEY = "bench_measure"  # in internal_states[0]

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
PREFILL_CAPTURE = (
    "sglang.srt.model_executor.model_runner_components.cuda_graph_setup.capture_prefill_graph"
)
# Where a launch waits for the lengths that the round before decides, on backends that need them.
LENGTHS = "sglang.srt.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu"
GIB = 2**30


def done_marker(control: Path) -> Path:
    """Returns the file that holds the last command whose watch is over."""
    return control.with_suffix(".done")


class Build:
    """Seconds and GB between two points of the server's start."""

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None
        self.seconds: float | None = None
        self.gb: float | None = None
        self.prefill_s = 0.0
        self.prefill_gb = 0.0

    def begin(self) -> None:
        """Marks the first point."""
        used_gb = device_used_gb()
        self._start = time.perf_counter(), used_gb

    def end(self) -> None:
        """Marks the second point."""
        assert self._start is not None, "the graphs come after the attention backends"
        # Synchronises first, so that the seconds hold all device work.
        used_gb = device_used_gb()
        self.seconds = time.perf_counter() - self._start[0]
        self.gb = used_gb - self._start[1]

    def measure_prefill(self, capture: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds up what the prefill graphs take, which belong to no tier and are in every arm."""
        before_gb, start_s = device_used_gb(), time.perf_counter()
        captured = capture(*args, **kwargs)
        self.prefill_gb += device_used_gb() - before_gb
        self.prefill_s += time.perf_counter() - start_s
        return captured


def device_used_gb() -> float:
    """Returns the memory in use: of the whole GPU, or without one of this process."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return float(total - free) / GIB
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE") / GIB


class Watch:
    """Waits until a full batch has decoded for as long as a command wants."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._batch_size: int = wanted["batch_size"]
        self._wanted_ns = int(wanted["seconds"] * 1e9)
        self._start_ns: int | None = None

    def is_over(self, time_ns: int, batch_size: int, has_finished: bool) -> bool:
        """Whether a processed round ends the wait: long enough, or the batch is no longer full."""
        if batch_size != self._batch_size or has_finished:
            return self._start_ns is not None
        if self._start_ns is None:
            self._start_ns = time_ns
        return time_ns - self._start_ns >= self._wanted_ns


class RequestLog:
    """When each request had its first token and its last, as the scheduler learnt it."""

    def __init__(self) -> None:
        self._first_ns: dict[str, int] = {}
        self.finished: list[tuple[str, int, int, int]] = []  # id, first, last, output tokens

    def note(self, reqs: Sequence[Any], is_decode: bool, time_ns: int) -> None:
        """Notes a processed batch; of a prompt in several chunks the last one counts."""
        if not is_decode:
            self._first_ns.update((req.rid, time_ns) for req in reqs)
        for req in reqs:
            # A finished request is in one more batch, which was launched before.
            if req.finished() and req.rid in self._first_ns:
                first_ns = self._first_ns.pop(req.rid)
                # The host keeps what it accepted behind an end, and marks the end.
                num_tokens = req.finished_len or len(req.output_ids)
                self.finished.append((req.rid, first_ns, time_ns, num_tokens))


class Phases:
    """How long the scheduler takes to pick, to launch and to process a batch, by kind of batch.

    Picking and launching are the CPU's alone, unless it waits for the GPU where it should not;
    processing waits for the result.
    """

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}  # number and ms

    def around(self, phase: str, is_given: bool) -> Any:
        """Returns a hook around a method of the scheduler.

        Args:
            phase: What the method does.
            is_given: The batch is its argument; else it is in the plan that it returns.
        """

        def hook(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            start_ns = time.perf_counter_ns()
            result = method(*args, **kwargs)
            batch = args[1] if is_given else result.batch_to_run
            if batch is not None:
                took = self.took.setdefault(f"{phase} {kind_of(batch)}", [0, 0.0])
                took[0] += 1
                took[1] = round(took[1] + (time.perf_counter_ns() - start_ns) / 1e6, 3)
            return result

        return hook


def kind_of(batch: Any) -> str:
    """Returns what is told apart of a batch."""
    return "decode" if batch.forward_mode.is_decode() else "prefill"


class Probe:
    """What one scheduler process has measured."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._watch: Watch | None = None
        self._requests: RequestLog | None = None
        self._command_id = 0
        self._engine: Engine | None = None
        self.build = Build()
        self.phases = Phases()
        self.num_captures = {"before_ready": 0, "after_ready": 0}
        self._ready = False
        self._rounds: list[tuple[Any, ...]] = []

    def count_capture(self) -> None:
        """Counts one CUDA graph capture."""
        self.num_captures["after_ready" if self._ready else "before_ready"] += 1

    def mark_ready(self) -> None:
        """Notes that the scheduler is about to serve."""
        self._ready = True

    def record(self, batch: Any, result: Any) -> None:
        """Keeps a processed decode round as benchmarks/lab/load.py has it."""
        now_ns = time.perf_counter_ns()
        if self._requests is not None:
            self._requests.note(batch.reqs, batch.forward_mode.is_decode(), now_ns)
        if not batch.forward_mode.is_decode():
            self._rounds.append((now_ns, 0, 0, None, False, False))
            return
        size = len(batch.reqs)
        has_finished = any(req.finished() for req in batch.reqs)
        self._rounds.append(
            (
                now_ns,
                size,
                size * result.num_non_draft_tokens_per_req + result.num_correct_drafts,
                result.speculative_num_draft_tokens,
                has_finished,
                bool(result.can_run_cuda_graph),
                hasattr(result, "_adaptive_spec_kept"),
            )
        )
        if self._watch is not None and self._watch.is_over(now_ns, size, has_finished):
            self._watch = None
            done_marker(self._control).write_text(str(self._command_id))

    def answer(self, scheduler: Any) -> dict[str, Any]:
        """Carries out a new command from the control file and reports."""
        from sglang.srt.runtime_context import get_parallel

        if self._engine is None:
            self._engine = Engine(scheduler)
        command = json.loads(self._control.read_text())
        done: dict[str, Any] = {}
        if command["id"] != self._command_id:
            done = self._engine.obey(command)
            if self._requests is not None:
                done["requests"] = self._requests.finished
            self._requests = RequestLog() if command["log_requests"] else None
            self._command_id = command["id"]
            wanted = command["watch"]
            self._watch = None if wanted is None else Watch(wanted)
        rounds, self._rounds = self._rounds, []
        phases, self.phases.took = self.phases.took, {}
        return {
            "command_id": self._command_id,
            "dp_rank": get_parallel().attn_dp_rank,
            "build_s": self.build.seconds,
            "build_gb": self.build.gb,
            "prefill_s": self.build.prefill_s,
            "prefill_gb": self.build.prefill_gb,
            "num_captures": dict(self.num_captures),
            "max_total_tokens": scheduler.max_total_num_tokens,
            "max_running_requests": scheduler.max_running_requests,
            "rounds": rounds,
            "phases": phases,
            **done,
        }


def register() -> None:
    """Installs the hooks; does nothing in a server that no benchmark started."""
    control = os.environ.get(CONTROL_ENV)
    if control is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(control))

    def before(target: str, action: Callable[[], None]) -> None:
        HookRegistry.register(target, lambda *_args, **_kw: action(), HookType.BEFORE)

    def after(target: str, hook: Callable[..., Any]) -> None:
        HookRegistry.register(target, hook, HookType.AFTER)

    def around(name: str, phase: str, is_given: bool = True) -> None:
        hook = probe.phases.around(phase, is_given)
        HookRegistry.register(f"{SCHEDULER}.{name}", hook, HookType.AROUND)

    def report(output: Any, scheduler: Any, *_args: Any, **_kw: Any) -> Any:
        output.internal_state[ANSWER_KEY] = probe.answer(scheduler)
        return output

    before(f"{SCHEDULER}.init_all_attention_backends", probe.build.begin)
    after(f"{SCHEDULER}.init_all_cuda_graphs", lambda *_args, **_kw: probe.build.end())
    HookRegistry.register(PREFILL_CAPTURE, probe.build.measure_prefill, HookType.AROUND)
    before("torch.cuda.CUDAGraph.capture_begin", probe.count_capture)
    before(f"{SCHEDULER}.get_init_info", probe.mark_ready)
    after(f"{SCHEDULER}.process_batch_result", lambda _none, _self, *args: probe.record(*args))
    around("get_next_batch_to_run", "pick", is_given=False)
    around("run_batch", "launch")
    around("process_batch_result", "process")
    HookRegistry.register(LENGTHS, probe.phases.around("lengths", is_given=True), HookType.AROUND)
    after(f"{SCHEDULER}.get_internal_state", report)
