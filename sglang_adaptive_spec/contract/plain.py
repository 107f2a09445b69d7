"""What of the host a zero-step round touches (plain_round.py) beside what every round does."""

from __future__ import annotations

from sglang_adaptive_spec.contract.symbols import Kind, Symbol, of

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

PLAIN: tuple[Symbol, ...] = (
    # -- who may have them --
    *of(
        "sglang.srt.configs.hybrid_arch",
        (CALL, "mambaish_config", "keep the host's round for recurrent state", "model_config"),
    ),
    *of(
        "sglang.srt.configs.model_config:ModelConfig",
        (READ, "is_encoder_decoder", "keep the host's round for encoder-decoder models"),
        (READ, "dtype", "keep hidden states in the draft's type"),
        (READ, "num_attention_heads", "know how wide a catch-up the workspace allows"),
        (READ, "head_dim", "know how wide a catch-up the workspace allows"),
        (
            CALL,
            "get_num_kv_heads",
            "know how wide a catch-up the workspace allows",
            "self, tensor_parallel_size",
        ),
    ),
    *of(
        "sglang.srt.model_executor.model_runner_components.ngram_embedding_manager"
        ":NgramEmbeddingManager",
        (READ, "enabled", "keep the host's round with n-gram embeddings"),
    ),
    # -- graphs --
    *of(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
        (
            OVERRIDE,
            "__init__",
            "capture decode, not verify",
            "self, model_runner, *, attn_backend, speculative_num_steps, "
            "speculative_num_draft_tokens, record_nolora_graph",
        ),
        (
            OVERRIDE,
            "capture_prepare",
            "capture with hidden states",
            "self, size, stream_idx, num_tokens",
        ),
        (WRITE, "capture_hidden_mode", "capture with hidden states"),
    ),
    *of(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
        (READ, "NONE", "capture as without speculation"),
    ),
    # -- forward and sampling --
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        (
            CALL,
            "init_new",
            "build the decode forward",
            "cls, batch, model_runner, *, capture_hidden_mode, return_hidden_states_before_norm",
        ),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        (WRITE, "spec_info", "tell the positions, then decode as without speculation"),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:CaptureHiddenMode",
        (READ, "FULL", "keep what the draft will read"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (WRITE, "multimodal_inputs", "catch up some of the rows"),
        (WRITE, "replace_embeds", "catch up rows that decode beside a prefill that has any"),
        (WRITE, "replace_positions", "catch up rows that decode beside a prefill that has any"),
        (READ, "decoding_reqs", "know which rows of a mixed batch decode"),
        (READ, "global_num_tokens", "leave batches alone that are padded for experts"),
        (WRITE, "top_logprobs_nums", "catch up some of the rows"),
        (WRITE, "token_ids_logprobs", "catch up some of the rows"),
    ),
    *of(
        "sglang.srt.mem_cache.memory_pool:ReqToTokenPool",
        (READ, "req_to_token", "find the KV slots of the rows"),
    ),
    *of(
        "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo",
        (READ, "is_all_greedy", "draw the same token on every rank"),
        (WRITE, "temperatures", "catch up some of the rows"),
        (WRITE, "top_ks", "catch up some of the rows"),
        (WRITE, "sampling_seed", "catch up some of the rows"),
    ),
    *of(
        "sglang.srt.speculative.eagle_utils",
        (
            CALL,
            "get_draft_input_from_target_hidden_dim",
            "size the backlog",
            "model_runner",
        ),
    ),
    *of(
        "sglang.srt.layers.logits_processor",
        (
            CALL,
            "LogitsProcessorOutput",
            "hand the backlog to the host's draft-extend",
            "*, next_token_logits, hidden_states",
        ),
    ),
    *of(
        "sglang.srt.layers.logits_processor:LogitsProcessorOutput",
        (READ, "hidden_states", "keep what the draft will read"),
        (WRITE, "next_token_logprobs", "give logprobs the shape of spec results"),
    ),
    # -- several decodes in one of them --
    *of(
        "sglang.srt.managers.scheduler_components.batch_result_processor"
        ":SchedulerBatchResultProcessor",
        (
            HOOK,
            "_resolve_spec_v2_tokens",
            "count a run's decodes as so many verifies",
            "self, result, batch",
        ),
    ),
    *of(
        "sglang.srt.managers.scheduler_components.metrics_reporter:SchedulerMetricsReporter",
        (
            HOOK,
            "update_spec_metrics",
            "the same in the server's gauges",
            "self, bs, num_correct_drafts, num_accept_tokens, *, num_block_accept_tokens",
        ),
        (HOOK, "report_decode_stats", "report the rate of the drafts that were proposed", "self"),
        (HOOK, "_active_spec_config_snapshot", "show the tier behind a prefill, too", "self"),
        (WRITE, "spec_num_correct_drafts", "report the rate of the drafts that were proposed"),
        (READ, "spec_num_block_accept_tokens", "know the drafts proposed since the last report"),
        (READ, "spec_num_forward_ct", "know whether it reported"),
        (READ, "scheduler", "reach the tier in force"),
    ),
    *of(
        "sglang.srt.runtime_context",
        (CALL, "get_spec", "know by how many drafts a verify it divides", ""),
    ),
    # -- what a request that ends leaves to the prefix cache --
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (
            HOOK,
            "owned_kv_len|effective_kv_committed_len",  # the latter in 0.5.20
            "keep what the draft has no KV for out of the prefix cache",
            "self",
        ),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ReqKvInfo",
        (READ, "req_pool_idx", "find what is known of the request"),
    ),
    *of(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager",
        (
            HOOK,
            "_calculate_spec_decoding_metrics",
            "give a request the rate of the drafts that it was proposed",
            "self, meta_info, recv_obj, i",
        ),
        (READ, "server_args", "see whether ADAPTIVE_EAGLE was asked for"),
    ),
    *of(
        "sglang.srt.managers.io_struct:BatchStrOutput",
        (READ, "spec_num_block_accept_tokens", "know the drafts that a request was proposed"),
        (READ, "spec_num_correct_drafts", "divide by them"),
    ),
    *of(
        "sglang.srt.managers.utils:GenerationBatchResult",
        (READ, "num_non_draft_tokens_per_req", "know a run's decodes"),
    ),
    *of(
        "sglang.srt.managers.scheduler:Scheduler",
        (READ, "waiting_queue", "let no request wait for a run"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (READ, "return_hidden_states", "run single decodes for them"),
        (HOOK, "retract_decode", "count retractions by the minute", "self"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (WRITE, "spec_verify_ct", "count a run's decodes as so many verifies"),
        (WRITE, "spec_num_block_accept_tokens", "count the drafts that it was proposed"),
        (
            CALL,
            "update_spec_correct_drafts_histogram",
            "the same in the request's histogram",
            "self, num_correct_drafts",
        ),
        (READ, "is_retracted", "count as the host does"),
        (CALL, "finished", "count as the host does", "self"),
        (READ, "stream", "run single decodes for streams with an interval"),
        (READ, "sampling_params", "run single decodes for streams with an interval"),
        (READ, "return_routed_experts", "run single decodes for them"),
        (READ, "return_indexer_topk", "run single decodes for them"),
    ),
    *of(
        "sglang.srt.sampling.sampling_params:SamplingParams",
        (READ, "stream_interval", "run single decodes for streams with an interval"),
    ),
    *of(
        "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo",
        (READ, "has_custom_logit_processor", "run single decodes for it"),
        (READ, "penalizer_orchestrator", "run single decodes under penalties"),
        (READ, "acc_additive_penalties", "the same under the overlap schedule"),
    ),
    *of(
        "sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator",
        (READ, "is_required", "run single decodes under penalties"),
    ),
    *of(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        (READ, "sampling_observer", "run single decodes for it"),
    ),
    # -- what they leave as it was --
    *of(
        "sglang.srt.speculative.eagle_utils",
        (
            HOOK,
            "eagle_prepare_for_decode",
            "reserve slots only where a round may run out of them",
            "batch",
        ),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        (CALL, "maybe_evict_swa", "do the rest of that step all the same", "self"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (WRITE, "decode_batch_idx", "do the rest of that step all the same"),
    ),
    *of(
        "sglang.srt.managers.overlap_utils:FutureMap",
        (
            HOOK,
            "stash",
            "relay tokens alone where the drafts are those relayed before",
            "self, future_indices, payload",
        ),
        (CALL, "stash_bonus_tokens", "the same", "self, indices, bonus_tokens"),
    ),
    *of(
        "sglang.srt.managers.overlap_utils:RelayPayload",
        (READ, "topk_index", "know the drafts relayed before"),
        (READ, "bonus_tokens", "relay them alone"),
    ),
    # -- what drafting rounds read of them --
    *of(
        "sglang.srt.managers.utils",
        (
            CALL,
            "GenerationBatchResult",
            "give the round's result, and the catch-up its input",
            "*, logits_output, next_token_ids, can_run_cuda_graph, speculative_num_draft_tokens, "
            "next_draft_input, accept_lens, new_seq_lens, routed_experts_output, "
            "indexer_topk_output, extra_keep_alive_refs, speculative_output_stride, "
            "num_non_draft_tokens_per_req",
        ),
    ),
    *of(
        "sglang.srt.managers.utils:GenerationBatchResult",
        (READ, "logits_output", "sample from it"),
        (READ, "can_run_cuda_graph", "hand it on"),
        (READ, "routed_experts_output", "hand it on"),
        (READ, "indexer_topk_output", "hand it on"),
        (READ, "new_seq_lens", "end the catch-up's window at the newest token"),
        (READ, "next_draft_input", "let the catch-up write the drafts into it"),
    ),
    *of(
        "sglang.srt.speculative.eagle_info",
        (
            CALL,
            "EagleDraftInput",
            "relay a round without draft-extend, and start one to measure",
            "*, bonus_tokens, topk_p, topk_index, hidden_states, draft_probs",
        ),
    ),
    *of(
        "sglang.srt.speculative.eagle_info:EagleVerifyInput",
        (
            CALL,
            "create_idle_input",
            "stand for a tree that nobody reads",
            "cls, *, topk, spec_steps, num_verify_tokens, device",
        ),
    ),
    *of(
        "sglang.srt.speculative.eagle_info:EagleDraftInput",
        (READ, "bonus_tokens", "decode them"),
        (WRITE, "topk_p", "relay what the last draft-extend wrote"),
        (WRITE, "topk_index", "the same; compare the first draft with the target's token"),
        (WRITE, "hidden_states", "relay what the last draft-extend wrote"),
        (WRITE, "draft_probs", "relay what the last draft-extend wrote"),
        (WRITE, "dsa_topk_indices", "relay what the last draft-extend wrote"),
    ),
)
