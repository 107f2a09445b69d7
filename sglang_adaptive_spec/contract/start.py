"""What of the host a start touches: how the plugin enters, arguments, captures and memory."""

from __future__ import annotations

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.contract.symbols import Kind, Symbol, of

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_GRAPHS = "sglang.srt.model_executor.cuda_graph_config"
_FIELDS = "sglang.srt.arg_groups.fields"
# ServerArgs is assembled from these classes when it is imported.
_INPUT_FIELDS = tuple(
    f"{_FIELDS}.{place}"
    for place in (
        "spec:Spec",
        "model:Model",
        "device:Device",
        "parallel:Parallel",
        "schedule:Schedule",
        "memory:Memory",
        "disagg:Disagg",
        "lora:Lora",
        "exec_:ExecKernel",
        "exec_:ExecMoe",
        "exec_:ExecDeterministic",
        "exec_:ExecOverlap",
        "exec_:ExecFeatures",
        "exec_:ExecComm",
        "exec_:ExecGraph",
        "exec_:ExecMamba",
        "exec_:ExecOffload",
    )
)

_START: tuple[Symbol, ...] = (
    # -- how the plugin enters --
    *of(
        "sglang.srt.plugins.hook_registry:HookRegistry",
        (CALL, "register", "register the hooks", "cls, target, hook, hook_type"),
        (CALL, "apply_hooks", "apply the capture hook in the scheduler process", "cls"),
    ),
    *of(
        "sglang.srt.plugins.hook_registry:HookType",
        (READ, "AROUND", "wrap a host function"),
        (READ, "AFTER", "add to what a host function returns"),
    ),
    *of(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
        (
            CALL,
            "register",
            "own the public name, and refuse where it is reached unresolved",
            "cls, name, *, supports_overlap, validate_server_args",
        ),
        (HOOK, "create_worker", "serve with a subclass of the host's worker", "self, server_args"),
    ),
    *of(
        "sglang.srt.managers.scheduler:Scheduler",
        (HOOK, "get_internal_state", "show tiers and counters in /server_info", "self, recv_req"),
        (HOOK, "set_internal_state", "pin a tier and show the minutes", "self, recv_req"),
        (HOOK, "get_init_info", "tell the launching process which worker was built", "self"),
        (READ, "server_args", "see whether ADAPTIVE_EAGLE was asked for"),
        (READ, "draft_worker", "reach the worker's telemetry and its class name"),
    ),
    *of("sglang.srt.plugins", (CALL, "load_plugins", "preview a launch as the server does", "")),
    *of(
        "sglang.srt.server_args",
        (CALL, "prepare_server_args", "preview a launch as the server does", "argv"),
    ),
    *of(
        "sglang.srt.managers.io_struct:SetInternalStateReq",
        (READ, "server_args", "find the commands for this plugin"),
    ),
    *of(
        "sglang.srt.managers.io_struct:SetInternalStateReqOutput",
        (READ, "updated", "answer a command"),
    ),
    *of(
        "sglang.srt.managers.io_struct:GetInternalStateReqOutput",
        (READ, "internal_state", "add the object adaptive_spec and the steps in force"),
    ),
    *of(
        "sglang.srt.entrypoints.engine:Engine",
        (
            HOOK,
            "_launch_scheduler_processes",
            "refuse readiness unless every scheduler built our worker",
            "cls, server_args",
        ),
    ),
    *of(
        "sglang.srt.entrypoints.engine:SchedulerInitResult",
        (WRITE, "wait_for_ready", "check the workers when the schedulers report ready"),
        (READ, "scheduler_infos", "read which worker each scheduler built"),
    ),
    # -- arguments --
    *of(
        "sglang.srt.server_args:ServerArgs",
        (HOOK, "resolve_once", "rewrite ADAPTIVE_EAGLE before the arguments are resolved", "self"),
        (CALL, "__reduce__", "carry the request into the child processes by pickle", "self"),
        (CALL, "check_server_args", "say what the host refuses when its engine starts", "self"),
    ),
    *of(
        "sglang.srt.server_args:ServerArgs",
        (WRITE, "speculative_algorithm", "name EAGLE or EAGLE3 in place of ADAPTIVE_EAGLE"),
        (WRITE, "speculative_num_steps", "resolve at the largest tier"),
        (WRITE, "speculative_eagle_topk", "resolve for chains"),
        (WRITE, "speculative_num_draft_tokens", "resolve at the largest tier"),
        (READ, "speculative_adaptive", "refuse two controllers at once"),
        (READ, "speculative_adaptive_config", "find adaptive_spec.json"),
        (READ, "speculative_draft_model_path", "tell EAGLE from EAGLE-3 by the draft's config"),
        (READ, "speculative_draft_model_revision", "know which class the host loads a draft as"),
        (READ, "model_path", "find the config of a draft inside the target"),
        (READ, "trust_remote_code", "load the draft's config as the host does"),
        (READ, "max_running_requests", "raise the host's cap for EAGLE"),
        (READ, "cuda_graph_bs_decode", "capture no other sizes than the user's"),
        (READ, "cuda_graph_max_bs_decode", "likewise"),
        (READ, "cuda_graph_config", "likewise"),
        (READ, "device", "serve static where nothing was run; know where rounds are captured"),
        (READ, "page_size", "know how large an index of KV slots is"),
        (READ, "triton_attention_num_kv_splits", "know what Triton keeps per token"),
        (READ, "moe_a2a_backend", "raise it only where no buffers depend on it"),
        (READ, "tp_size", "know the heads of one rank"),
        (
            READ,
            "speculative_use_rejection_sampling",
            "not catch up in parts what is sampled for a whole batch; measure with probabilities",
        ),
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
    *of(
        "sglang.srt.arg_groups.overrides",
        (CALL, "resolved_view", "read the arguments as the host resolved them", "server_args"),
        (CALL, "resolving_view", "read them while it does", "server_args"),
        (
            CALL,
            "declare_resolution",
            "raise the cap on running requests",
            "server_args, source, *, max_running_requests",
        ),
    ),
    *of(
        "sglang.srt.arg_groups.resolution_hooks",
        (CALL, "register_resolution_hook", "wrap a step of resolution", "name"),
    ),
    *of(
        "sglang.srt.arg_groups.speculative_hook",
        (
            HOOK,
            "handle_speculative_decoding",
            "raise the cap on running requests that it sets",
            "server_args",
        ),
    ),
    *of(
        "sglang.srt.managers.utils",
        (
            HOOK,
            "compute_num_reserved_tokens",
            "leave room for drafts only where they cannot be left out",
            "",
        ),
    ),
    *of(
        "sglang.srt.environ:Envs",
        (READ, "SGLANG_FLASHINFER_WORKSPACE_SIZE", "know for how many requests plans fit"),
        (READ, "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH", "capture no draft-extends then"),
        (
            WRITE,
            "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND",
            "catch the draft up although it is set",
        ),
    ),
    *of("sglang.srt.environ", (READ, "envs", "read a variable of the host")),
    *of(
        "sglang.srt.arg_groups.model_override_base",
        (CALL, "model_config_of", "know the heads of the target", "server_args"),
        (
            CALL,
            "use_mla_backend",
            "refuse trees where MLA backends draft chains; hook the backends that serve",
            "server_args",
        ),
    ),
    *of(
        "sglang.srt.server_args:ServerArgs",
        (READ, "enable_dp_attention", "let drafts wait for lengths that ranks share"),
        (READ, "attention_backend", "refuse trees on backends that draft chains only"),
        (READ, "decode_attention_backend", "refuse trees on backends that draft chains only"),
        (READ, "prefill_attention_backend", "refuse trees on backends that draft chains only"),
        (READ, "speculative_draft_attention_backend", "refuse trees where a draft has chains only"),
        declared_in=_INPUT_FIELDS,
    ),
    *of(
        "sglang.srt.speculative.adaptive_spec_params",
        (
            CALL,
            "adaptive_unsupported_reason",
            "serve static wherever the host's own controller would not run",
            "server_args",
        ),
        (READ, "DEFAULT_ADAPTIVE_CONFIG", "ship the preset host-default"),
    ),
    *of(
        "sglang.srt.layers.attention.qsa.config",
        (CALL, "parse_qsa_profile", "tell drafts whose shared indices depend on depth", "config"),
    ),
    *of(
        "sglang.srt.utils.hf_transformers_utils",
        (CALL, "get_config", "read the draft's architecture", "model, *, trust_remote_code"),
    ),
    *of(
        "sglang.srt.runtime_context",
        (CALL, "get_server_args", "see whether ADAPTIVE_EAGLE was asked for", ""),
        (CALL, "get_exec", "read the CUDA-graph settings in force", ""),
        (CALL, "get_parallel", "read ranks and groups", ""),
        (CALL, "get_context", "say how wide a tree is while it is built", ""),
        (
            CALL,
            "get_buffer",
            "put a large workspace where the host looks for its own",
            "name, factory",
        ),
        (CALL, "get_observability", "see whether metrics are on", ""),
        (CALL, "get_serving", "label the counters with the served model's name", ""),
    ),
    *of(
        "sglang.srt.mem_cache.allocation_sizing",
        (CALL, "get_alloc_reserve_per_decode", "know what a round may write", ""),
    ),
    *of(
        "sglang.srt.runtime_context:RuntimeContext",
        (
            CALL,
            "override",
            "say how wide a tree is while it is built",
            "self, source, *, speculative_eagle_topk",
        ),
    ),
    *of(
        "sglang.srt.runtime_context:ParallelContext",
        (READ, "tp_rank", "log and export metrics on one rank"),
        (READ, "tp_size", "know the heads of one rank"),
        (READ, "tp_group", "take the same decision on every rank"),
        declared_in=("sglang.srt.runtime_context:ParallelContext", f"{_FIELDS}.parallel:Parallel"),
    ),
    *of(
        f"{_FIELDS}.observability:Observability",
        (READ, "enable_metrics", "export counters only with --enable-metrics"),
    ),
    *of(
        f"{_FIELDS}.serving:Serving",
        (READ, "served_model_name", "label the counters"),
    ),
    # -- graphs and memory --
    *of(
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup",
        (
            HOOK,
            "capture_decode_graph",
            "narrow the list to what the start-up tier needs while the target captures",
            "*, model_runner",
        ),
    ),
    *of(
        "sglang.srt.mem_cache.allocation_sizing",
        (
            HOOK,
            "get_req_to_token_extra_context_len",
            "let a row hold a round's reserve past the end of the context",
            "",
        ),
    ),
    *of(
        f"{_FIELDS}.exec_:ExecGraph",
        (READ, "_NS_PATH", "reach these settings as get_exec().graph"),
        (READ, "cuda_graph_config", "find the capture list in force"),
    ),
    *of(
        _GRAPHS,
        (CALL, "check_cuda_graph_backend", "see whether graphs are on", "phase, backend"),
    ),
    *of(f"{_GRAPHS}:CudaGraphConfig", (READ, "decode", "find the decode phase's settings")),
    *of(
        f"{_GRAPHS}:PhaseConfig",
        (WRITE, "bs", "narrow the capture list around a capture"),
        (WRITE, "backend", "capture nothing for a tier that no graph serves"),
    ),
    *of(f"{_GRAPHS}:Backend", (READ, "DISABLED", "capture nothing")),
    *of(f"{_GRAPHS}:Phase", (READ, "DECODE", "ask about the decode phase")),
    *of(
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
    *of(
        "sglang.srt.utils",
        (
            CALL,
            "get_available_gpu_memory",
            "measure free memory",
            "device, gpu_id, *, distributed, cpu_group",
        ),
    ),
    *of(
        "sglang.srt.distributed.parallel_state:GroupCoordinator",
        (CALL, "broadcast_object", "know the same on every rank", "self, obj, *, src"),
        (CALL, "broadcast", "draw the same token on every rank", "self, input_, *, src"),
        (READ, "world_size", "ask other ranks only when there are some"),
        (READ, "cpu_group", "take the least free memory of all ranks"),
    ),
    # -- measuring rounds --
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (
            CALL,
            "init_new",
            "make a batch that no request owns",
            "cls, reqs, req_to_token_pool, token_to_kv_pool_allocator, tree_cache, model_config, "
            "enable_overlap, spec_algorithm",
        ),
        (WRITE, "orig_seq_lens", "give that batch a length"),
        (WRITE, "req_pool_indices_cpu", "give that batch rows"),
    ),
    *of(
        "sglang.srt.sampling.sampling_batch_info",
        (
            CALL,
            "SamplingBatchInfo",
            "sample greedily",
            "*, temperatures, top_ps, top_ks, min_ps, is_all_greedy, is_any_greedy, "
            "need_top_p_sampling, need_top_k_sampling, need_min_p_sampling, vocab_size, device",
        ),
    ),
    *of(
        "sglang.srt.speculative.eagle_utils",
        (
            CALL,
            "get_draft_recurrent_hidden_state_spec",
            "know the shape of the draft's hidden state",
            "model_runner",
        ),
    ),
    *of(
        "sglang.srt.configs.model_config:ModelConfig",
        (
            CALL,
            "__init__",
            "know which drafts the host takes a part of",
            "self, model_path, *, trust_remote_code, revision, is_draft_model",
        ),
        (READ, "hf_config", "know which class the host loads a draft as"),
        (READ, "vocab_size", "sample greedily"),
        (READ, "is_hybrid_swa", "know that the slots of windows are found apart"),
        (
            READ,
            "context_len",
            "know how large an index gets; measure no context that attention has no buffers for",
        ),
    ),
    *of(
        "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator",
        (CALL, "alloc", "borrow KV slots", "self, need_size"),
        (CALL, "free", "give them back", "self, free_index"),
        (CALL, "available_size", "borrow no more than there are", "self"),
        (READ, "page_size", "borrow whole pages"),
    ),
)

_LISTED = {symbol.path for symbol in _START}
_COSTS = of(
    "sglang.srt.server_args:ServerArgs",
    *((READ, name, "measure round times anew where it differs") for name in COST_SETTINGS),
    declared_in=_INPUT_FIELDS,
)
START = (*_START, *(symbol for symbol in _COSTS if symbol.path not in _LISTED))
