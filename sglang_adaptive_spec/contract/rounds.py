"""What of the host a round touches, and what building the tiers that rounds run at does."""

from __future__ import annotations

from sglang_adaptive_spec.contract.symbols import Kind, Symbol, of

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

_EAGLE = "sglang.srt.speculative.eagle_worker_v2"

ROUNDS: tuple[Symbol, ...] = (
    # -- the worker --
    *of(
        f"{_EAGLE}:EAGLEWorkerV2",
        (
            OVERRIDE,
            "__init__",
            "add controller and pool",
            "self, server_args, gpu_id, nccl_port, target_worker",
            "self, server_args, gpu_id, ps, nccl_port, target_worker",  # 0.5.20
        ),
        (
            OVERRIDE,
            "alloc_memory_pool",
            "provide a workspace before the first attention backend",
            "self, memory_pool_config, req_to_token_pool, token_to_kv_pool_allocator",
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
        ),
        (
            OVERRIDE,
            "spec_v2_attn_backends",
            "let no draft wait for lengths that only the verify needs",
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
            "self, batch, grammar_barrier",  # 0.5.20
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
        (WRITE, "topk", "switch tiers"),
        (WRITE, "speculative_num_steps", "switch tiers"),
        (WRITE, "speculative_num_draft_tokens", "switch tiers"),
    ),
    *of(
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
        (
            OVERRIDE,
            "draft",
            "take as many relayed proposals as the tier is wide",
            "self, batch, *, with_topology",
            "self, batch",  # 0.5.20
        ),
        (CALL, "init_attention_backend", "build the zero-step tier's draft-extend", "self"),
        (READ, "hot_token_id", "map a proposal to the target's vocabulary"),
        (
            READ,
            "plan_stream",
            "plan a draft-extend after verify has read the index, and after its window is there",
        ),
        (READ, "device", "find the stream that verify runs on"),
        (READ, "server_args", "know whether it runs on FA3"),
        (READ, "draft_runner", "switch the draft model's backends"),
        (WRITE, "topk", "switch tiers; relay as many proposals whatever the tier"),
        (WRITE, "speculative_num_steps", "switch tiers"),
        (WRITE, "speculative_num_draft_tokens", "switch tiers"),
        (WRITE, "draft_attn_backend", "switch the draft stage"),
        (WRITE, "cuda_graph_runner", "switch the draft stage"),
        (WRITE, "draft_extend_attn_backend", "switch the draft-extend stage"),
        (WRITE, "cuda_graph_runner_for_draft_extend", "switch the draft-extend stage"),
        (WRITE, "_topk1_parents_prealloc", "switch the chain's parents without an allocation"),
        (WRITE, "_topk1_score_indices_prealloc", "switch the chain's indices likewise"),
    ),
    *of(
        "sglang.srt.speculative.adaptive_runtime_state:AdaptiveController",
        (OVERRIDE, "register", "stand in for it: take the start-up tier", "self, state, steps"),
        (OVERRIDE, "init_states", "stand in for it: build the others", "self, cuda_graph_bs"),
    ),
    *of(
        "sglang.srt.speculative.adaptive_runtime_state:SpecRuntimeState",
        (READ, "target_attn_backend", "take a tier's verify backend"),
        (READ, "target_graph_runner", "take a tier's verify graphs"),
    ),
    *of(
        "sglang.srt.managers.tp_worker:TpModelWorker",
        (READ, "model_runner", "switch the verify side"),
        (
            CALL,
            "forward_batch_generation",
            "run the target in a zero-step round",
            "self, *, batch, forward_batch, is_verify",
        ),
    ),
    *of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        (WRITE, "attn_backend", "switch the verify and draft-extend stages"),
        (WRITE, "decode_cuda_graph_runner", "switch the verify stage"),
        (READ, "token_to_kv_pool_allocator", "borrow KV slots from the empty pool"),
        (READ, "gpu_id", "measure the memory that the start-up tier takes"),
        (
            HOOK,
            "_get_attention_backend",
            "build a tier's verify backend on the shared workspace",
            "self, init_new_workspace",
        ),
        (
            WRITE,
            "max_running_requests",
            "know the largest decode batch; take back a number for which there is no memory",
        ),
        (READ, "device", "capture nothing on a CPU"),
        (READ, "model_config", "see which models keep the host's zero-step round"),
        (READ, "hisparse_coordinator", "keep the host's zero-step round with HiSparse"),
        (READ, "ngram_embedding_manager", "keep the host's zero-step round with n-grams"),
        (READ, "req_to_token_pool", "find the KV slots of the rows"),
        (READ, "graph_shared_output", "tell what all graphs share from what a tier takes"),
        (WRITE, "spec_algorithm", "capture the zero-step tier's decode graphs"),
        (WRITE, "shared_read_done_event", "let the scheduler wait for this forward's reads only"),
        (CALL, "sample", "sample as without speculation", "self, logits_output, forward_batch"),
    ),
    *of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        (WRITE, "draft_attn_backend", "switch the draft stage"),
        declared_in=(f"{_EAGLE}:EagleDraftWorker.draft_runner",),
    ),
    *of(
        "sglang.srt.model_executor.graph_shared_output:GraphSharedOutput",
        (READ, "_logits_buffers", "tell what all graphs share from what a tier takes"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (WRITE, "is_extend_in_batch", "tell a mixed batch; catch up the rows of one that decode"),
        (WRITE, "reqs", "know the context of requests; catch up some of the rows"),
        (READ, "req_to_token_pool", "attribute results to requests"),
        (WRITE, "req_pool_indices", "find where the KV of a row stands; borrow rows to measure on"),
        (READ, "return_logprob", "compute logprobs only where they are asked for"),
        (READ, "has_grammar", "apply the grammar's mask"),
        (WRITE, "sampling_info", "apply the grammar's mask; sample greedily to measure"),
        (READ, "device", "make the tree that logprobs are computed from"),
        (WRITE, "forward_mode", "tell extend from decode; decode in a zero-step round"),
        (WRITE, "spec_info", "take the draft's input out of a zero-step round"),
        (WRITE, "input_ids", "decode the bonus tokens"),
        (WRITE, "out_cache_loc", "write KV where decode, or the catch-up, puts it"),
        (WRITE, "seq_lens", "read the batch size; one token more, or the catch-up's window"),
        (WRITE, "seq_lens_cpu", "the same on the CPU"),
        (WRITE, "seq_lens_sum", "the same summed"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (READ, "kv", "know how much context a request has"),
    ),
    *of(
        "sglang.srt.mem_cache.memory_pool:ReqToTokenPool",
        (READ, "req_generation", "tell requests of one row apart"),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode",
        (CALL, "is_extend", "tell extend from decode", "self"),
        (CALL, "is_idle", "leave idle batches alone", "self"),
        (CALL, "is_mixed", "catch the draft up before decode rows ride along", "self"),
        (READ, "DECODE", "decode in a zero-step round"),
    ),
)
