"""The contract: every host symbol this plugin touches, how, and what for.

The one idea: nothing of the host is used that is not listed here, and everything listed is checked:
against the released wheels in the tests, against the installed host at `register()` and by
`sglang-adaptive-spec check`. Standard library only.

Signatures are Python parameter lists without annotations. Their meaning depends on the kind:
HOOK and CALL name what we pass: parameters before `*` by position, in the host's order, those after
it by keyword; a CALL also names every parameter that has no default.
OVERRIDE repeats the host's whole list; several lists mean that each is known from a tested release.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How the plugin touches a symbol."""

    HOOK = "hook"  # wrapped through the host's HookRegistry
    OVERRIDE = "override"  # redefined, in a subclass that calls super() or in a stand-in
    CALL = "call"
    READ = "read"
    WRITE = "write"  # assigned (and read)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol of the host."""

    module: str
    name: str  # function, constant, Class or Class.member
    kind: Kind
    why: str
    signatures: tuple[str, ...] = ()
    # Classes ("module:Class") that declare the member when its own class is built elsewhere;
    # declared in any one of them is enough.
    declared_in: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The dotted path, as the host's HookRegistry spells it."""
        return f"{self.module}.{self.name}"


HOOK, OVERRIDE, CALL, READ, WRITE = Kind


Row = tuple[Kind, str, str, *tuple[str, ...]]  # kind, name, why, signatures ...


def _of(owner: str, *rows: Row, declared_in: tuple[str, ...] = ()) -> tuple[Symbol, ...]:
    """Returns the symbols of one class ("module:Class") or module ("module")."""
    module, _, class_name = owner.partition(":")
    prefix = f"{class_name}." if class_name else ""
    return tuple(
        Symbol(module, prefix + name, kind, why, tuple(signatures), declared_in)
        for kind, name, why, *signatures in rows
    )


_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_GRAPHS = "sglang.srt.model_executor.cuda_graph_config"
_FIELDS = "sglang.srt.arg_groups.fields"
# ServerArgs is assembled from these classes when it is imported.
_INPUT_FIELDS = tuple(
    f"{_FIELDS}.{place}"
    for place in (
        "spec:Spec",
        "model:Model",
        "parallel:Parallel",
        "schedule:Schedule",
        "memory:Memory",
        "disagg:Disagg",
        "lora:Lora",
        "exec_:ExecMoe",
        "exec_:ExecDeterministic",
        "exec_:ExecOverlap",
        "exec_:ExecFeatures",
    )
)

CONTRACT: tuple[Symbol, ...] = (
    # -- how the plugin enters --
    *_of(
        "sglang.srt.plugins.hook_registry:HookRegistry",
        (CALL, "register", "register the hooks", "cls, target, hook, hook_type"),
        (CALL, "apply_hooks", "apply the capture hook in the scheduler process", "cls"),
    ),
    *_of(
        "sglang.srt.plugins.hook_registry:HookType",
        (READ, "AROUND", "wrap a host function"),
        (READ, "AFTER", "add to what a host function returns"),
    ),
    *_of(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
        (
            CALL,
            "register",
            "own the public name, and refuse where it is reached unresolved",
            "cls, name, *, supports_overlap, validate_server_args",
        ),
        (HOOK, "create_worker", "serve with a subclass of the host's worker", "self, server_args"),
    ),
    *_of(
        "sglang.srt.managers.scheduler:Scheduler",
        (HOOK, "get_internal_state", "show tiers and counters in /server_info", "self, recv_req"),
        (HOOK, "get_init_info", "tell the launching process which worker was built", "self"),
        (READ, "server_args", "see whether ADAPTIVE_EAGLE was asked for"),
        (READ, "draft_worker", "reach the worker's telemetry and its class name"),
    ),
    *_of(
        "sglang.srt.managers.io_struct:GetInternalStateReqOutput",
        (READ, "internal_state", "add the object adaptive_spec and the steps in force"),
    ),
    *_of(
        "sglang.srt.entrypoints.engine:Engine",
        (
            HOOK,
            "_launch_scheduler_processes",
            "refuse readiness unless every scheduler built our worker",
            "cls, server_args",
        ),
    ),
    *_of(
        "sglang.srt.entrypoints.engine:SchedulerInitResult",
        (WRITE, "wait_for_ready", "check the workers when the schedulers report ready"),
        (READ, "scheduler_infos", "read which worker each scheduler built"),
    ),
    # -- arguments --
    *_of(
        "sglang.srt.server_args:ServerArgs",
        (HOOK, "resolve_once", "rewrite ADAPTIVE_EAGLE before the arguments are resolved", "self"),
        (CALL, "__reduce__", "carry the request into the child processes by pickle", "self"),
    ),
    *_of(
        "sglang.srt.server_args:ServerArgs",
        (WRITE, "speculative_algorithm", "name EAGLE or EAGLE3 in place of ADAPTIVE_EAGLE"),
        (WRITE, "speculative_num_steps", "resolve at the largest tier"),
        (WRITE, "speculative_eagle_topk", "resolve for chains"),
        (WRITE, "speculative_num_draft_tokens", "resolve at the largest tier"),
        (READ, "speculative_adaptive", "refuse two controllers at once"),
        (READ, "speculative_adaptive_config", "find adaptive_spec.json"),
        (READ, "speculative_draft_model_path", "tell EAGLE from EAGLE-3 by the draft's config"),
        (READ, "model_path", "find the config of a draft inside the target"),
        (READ, "trust_remote_code", "load the draft's config as the host does"),
        (READ, "max_running_requests", "warn when the host caps it"),
        (READ, "dp_size", "know how many replicas report ready"),
        (READ, "pp_size", "serve static under pipeline parallelism"),
        (READ, "disaggregation_mode", "serve static under PD disaggregation"),
        (READ, "enable_lora", "serve static with LoRA"),
        (READ, "lora_paths", "serve static with LoRA"),
        (READ, "enable_hisparse", "serve static with HiSparse"),
        (READ, "elastic_ep_backend", "serve static under elastic expert parallelism"),
        (READ, "enable_deterministic_inference", "serve static where batch shapes must not change"),
        (READ, "enable_two_batch_overlap", "serve static under two-batch overlap"),
        (READ, "enable_pdmux", "serve static under PD multiplexing"),
        declared_in=_INPUT_FIELDS,
    ),
    *_of(
        "sglang.srt.arg_groups.overrides",
        (CALL, "resolved_view", "read the arguments as the host resolved them", "server_args"),
    ),
    *_of(
        "sglang.srt.speculative.adaptive_spec_params",
        (
            CALL,
            "adaptive_unsupported_reason",
            "serve static wherever the host's own controller would not run",
            "server_args",
        ),
        (READ, "DEFAULT_ADAPTIVE_CONFIG", "ship the preset host-default"),
    ),
    *_of(
        "sglang.srt.utils.hf_transformers_utils",
        (CALL, "get_config", "read the draft's architecture", "model, *, trust_remote_code"),
    ),
    *_of(
        "sglang.srt.runtime_context",
        (CALL, "get_exec", "read the CUDA-graph settings in force", ""),
        (CALL, "get_parallel", "read ranks and groups", ""),
        (CALL, "get_observability", "see whether metrics are on", ""),
        (CALL, "get_serving", "label the counters with the served model's name", ""),
    ),
    *_of(
        "sglang.srt.runtime_context:ParallelContext",
        (READ, "tp_rank", "log and export metrics on one rank"),
        (READ, "tp_group", "take the same decision on every rank"),
        declared_in=("sglang.srt.runtime_context:ParallelContext", f"{_FIELDS}.parallel:Parallel"),
    ),
    *_of(
        f"{_FIELDS}.observability:Observability",
        (READ, "enable_metrics", "export counters only with --enable-metrics"),
    ),
    *_of(
        f"{_FIELDS}.serving:Serving",
        (READ, "served_model_name", "label the counters"),
    ),
    # -- the worker --
    *_of(
        f"{_EAGLE}:EAGLEWorkerV2",
        (
            OVERRIDE,
            "__init__",
            "add controller and pool",
            "self, server_args, gpu_id, nccl_port, target_worker",
            "self, server_args, gpu_id, ps, nccl_port, target_worker",  # 0.5.20
        ),
        (OVERRIDE, "init_attention_backends", "hold garbage collection before captures", "self"),
        (OVERRIDE, "init_cuda_graphs", "build every tier inside the host's start-up", "self"),
        (
            OVERRIDE,
            "forward_batch_generation",
            "put the batch's tier in force before the round",
            "self, batch, on_publish, grammar_barrier, pp_proxy_tensors",
        ),
        (
            OVERRIDE,
            "on_verify_complete_cpu",
            "hand a processed result to the controller",
            "self, num_correct_drafts_per_req, batch_size",
        ),
        (
            OVERRIDE,
            "_override_worker_state",
            "remember the draft side of a tier before the host puts the old one back",
            "self, speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs",
        ),
        (
            OVERRIDE,
            "last_shared_read_runner",
            "name the runner that read last where no draft-extend followed",
            "self",
        ),
        (
            OVERRIDE,
            "_build_trivial_verify_input",
            "leave out a tree that a zero-step round does not need",
            "self, batch",
        ),
        (
            OVERRIDE,
            "verify",
            "run a decode forward in zero-step rounds",
            "self, batch, pp_proxy_tensors, grammar_barrier",
        ),
        (READ, "target_worker", "run and sample the decode forward"),
        (READ, "draft_worker", "find the draft's sizes and vocabulary"),
        (
            CALL,
            "build_adaptive_runtime_state",
            "build the backends and graphs of a tier",
            "self, speculative_num_steps, speculative_num_draft_tokens",
        ),
        (READ, "server_args", "find the request"),
        (READ, "device", "measure free memory"),
        (READ, "gpu_id", "measure free memory"),
        (READ, "_draft_worker", "switch the draft side"),
        (READ, "_target_worker", "switch the verify side"),
        (WRITE, "adaptive_controller", "be called back where the host builds its own tiers"),
        (WRITE, "speculative_num_steps", "switch tiers"),
        (WRITE, "speculative_num_draft_tokens", "switch tiers"),
    ),
    *_of(
        f"{_EAGLE}:EagleDraftWorker",
        (OVERRIDE, "init_attention_backends", "measure the start-up tier's backends", "self"),
        (OVERRIDE, "_capture_cuda_graphs", "capture at the batch sizes that reach a tier", "self"),
        (
            OVERRIDE,
            "_draft_extend_for_decode",
            "put the draft-extend of zero-step rounds off, then catch up",
            "self, batch, batch_result",
            "self, batch, batch_result, *, kv_loc_plan",  # 0.5.23
        ),
        (CALL, "init_attention_backend", "build the zero-step tier's draft-extend", "self"),
        (READ, "hot_token_id", "map a proposal to the target's vocabulary"),
        (READ, "draft_runner", "switch the draft model's backends"),
        (WRITE, "speculative_num_steps", "switch tiers"),
        (WRITE, "speculative_num_draft_tokens", "switch tiers"),
        (WRITE, "draft_attn_backend", "switch the draft stage"),
        (WRITE, "cuda_graph_runner", "switch the draft stage"),
        (WRITE, "draft_extend_attn_backend", "switch the draft-extend stage"),
        (WRITE, "cuda_graph_runner_for_draft_extend", "switch the draft-extend stage"),
        (WRITE, "_topk1_parents_prealloc", "switch the chain's parents without an allocation"),
        (WRITE, "_topk1_score_indices_prealloc", "switch the chain's indices likewise"),
    ),
    *_of(
        "sglang.srt.speculative.adaptive_runtime_state:AdaptiveController",
        (OVERRIDE, "register", "stand in for it: take the start-up tier", "self, state, steps"),
        (OVERRIDE, "init_states", "stand in for it: build the others", "self, cuda_graph_bs"),
    ),
    *_of(
        "sglang.srt.speculative.adaptive_runtime_state:SpecRuntimeState",
        (READ, "target_attn_backend", "take a tier's verify backend"),
        (READ, "target_graph_runner", "take a tier's verify graphs"),
    ),
    *_of(
        "sglang.srt.managers.tp_worker:TpModelWorker",
        (READ, "model_runner", "switch the verify side"),
    ),
    *_of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        (WRITE, "attn_backend", "switch the verify and draft-extend stages"),
        (WRITE, "decode_cuda_graph_runner", "switch the verify stage"),
        (
            HOOK,
            "_get_attention_backend",
            "build a tier's verify backend on the shared workspace",
            "self, init_new_workspace",
        ),
        (READ, "max_running_requests", "know the largest decode batch"),
        (READ, "device", "capture nothing on a CPU"),
    ),
    *_of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        (WRITE, "draft_attn_backend", "switch the draft stage"),
        declared_in=(f"{_EAGLE}:EagleDraftWorker.draft_runner",),
    ),
    *_of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (READ, "forward_mode", "tell extend from decode"),
        (READ, "is_extend_in_batch", "tell a mixed batch"),
        (READ, "seq_lens", "read the batch size"),
        (READ, "reqs", "attribute results to requests"),
    ),
    *_of(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode",
        (CALL, "is_extend", "tell extend from decode", "self"),
        (CALL, "is_idle", "leave idle batches alone", "self"),
    ),
    # -- graphs and memory --
    *_of(
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup",
        (
            HOOK,
            "capture_decode_graph",
            "narrow the list to what the start-up tier needs while the target captures",
            "*, model_runner",
        ),
    ),
    *_of(
        f"{_FIELDS}.exec_:ExecGraph",
        (READ, "_NS_PATH", "reach these settings as get_exec().graph"),
        (READ, "cuda_graph_config", "find the capture list in force"),
    ),
    *_of(
        _GRAPHS,
        (CALL, "check_cuda_graph_backend", "see whether graphs are on", "phase, backend"),
    ),
    *_of(f"{_GRAPHS}:CudaGraphConfig", (READ, "decode", "find the decode phase's settings")),
    *_of(
        f"{_GRAPHS}:PhaseConfig",
        (WRITE, "bs", "narrow the capture list around a capture"),
        (WRITE, "backend", "capture nothing for a tier that no graph serves"),
    ),
    *_of(f"{_GRAPHS}:Backend", (READ, "DISABLED", "capture nothing")),
    *_of(f"{_GRAPHS}:Phase", (READ, "DECODE", "ask about the decode phase")),
    *_of(
        "sglang.srt.model_executor.runner.base_cuda_graph_runner",
        (
            HOOK,
            "freeze_gc",
            "collect garbage once for all captures, not twice for each",
            "enable_cudagraph_gc",
        ),
        (
            CALL,
            "get_batch_sizes_to_capture",
            "know the list that the host would capture",
            "model_runner, captured_req_width",
        ),
    ),
    *_of(
        "sglang.srt.utils",
        (
            CALL,
            "get_available_gpu_memory",
            "measure free memory",
            "device, gpu_id, *, distributed, cpu_group",
        ),
    ),
    *_of(
        "sglang.srt.distributed.parallel_state:GroupCoordinator",
        (CALL, "broadcast_object", "leave out the same tiers on every rank", "self, obj, *, src"),
        (READ, "world_size", "ask other ranks only when there are some"),
        (READ, "cpu_group", "take the least free memory of all ranks"),
    ),
)
