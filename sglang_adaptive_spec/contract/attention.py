"""What of the host's attention backends the plugin touches: plans, index, lengths, graphs.

All of it in host/attention/: the index of KV slots is shared by shared_index.py, FlashInfer's plan
buffers by workspaces.py; its plans are made by uniform_plans.py and draft_bounds.py, those of
drafts by late_lengths.py before lengths are known; lengths of other forwards come from
eager_lengths.py, FA3's graphs of draft-extends from extend_graphs.py.
"""

from __future__ import annotations

from sglang_adaptive_spec.contract.symbols import Kind, Row, Symbol, of

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

_FA3 = "sglang.srt.layers.attention.flashattention_backend"
_FLASHINFER = "sglang.srt.layers.attention.flashinfer_backend"
_FLASHINFER_MLA = "sglang.srt.layers.attention.flashinfer_mla_backend"
_TRITON = "sglang.srt.layers.attention.triton_backend"

# Of the three backends that draft several steps in one graph.
_DRAFT_STEPS: tuple[Row, ...] = (
    (
        HOOK,
        "init_cuda_graph_state",
        "let the draft steps of all tiers share one index",
        "self, max_bs, max_num_tokens",
    ),
    (READ, "max_context_len", "know how large that index gets"),
    (READ, "attn_backends", "hand each step its row of the index"),
    (WRITE, "cuda_graph_kv_indices", "share it between tiers"),
)

ATTENTION: tuple[Symbol, ...] = (
    # -- FlashInfer's plan buffers --
    *of(
        "sglang.srt.utils",
        (CALL, "is_flashinfer_available", "hook its backend only where it is installed", ""),
    ),
    *of(
        f"{_FLASHINFER}:FlashInferAttnBackend",
        (
            HOOK,
            "_prepare_cuda_graph_metadata",
            "let the graphs of a backend share their plan buffers; give chains no mask",
            "self, bs, num_tokens, forward_mode, spec_info",
        ),
        (READ, "forward_metadata", "find the wrappers just made"),
        (READ, "workspace_buffer", "know how wide a catch-up it allows"),
    ),
    *of(
        _FLASHINFER_MLA,
        (READ, "FlashInferMLAAttnBackend", "know that its plan takes the same at any width"),
    ),
    *of(
        f"{_FLASHINFER}:DecodeMetadata",
        (READ, "decode_wrappers", "share their plan buffers"),
    ),
    *of(
        f"{_FLASHINFER}:PrefillMetadata",
        (READ, "prefill_wrappers", "share their plan buffers"),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode",
        (CALL, "is_decode_or_idle", "tell which wrappers were made", "self"),
        (CALL, "is_target_verify", "tell which wrappers were made", "self"),
        (CALL, "is_draft_extend_v2", "tell which wrappers were made", "self"),
    ),
    # -- FlashInfer's plans --
    *of(
        f"{_FLASHINFER}:FlashInferAttnBackend",
        (
            HOOK,
            "init_forward_metadata_out_graph",
            "capture draft-extends with tiles of their width; let plans of decodes wait",
            "self, forward_batch, in_capture",
        ),
        (READ, "prefill_backend", "plan the kernels that take a width, and no others"),
        (READ, "dispatch_reason", "leave windows and encoders to the host's plans"),
        (READ, "decode_use_tensor_cores", "draft without lengths where the kernel allows it"),
        (READ, "is_multimodal", "leave positions that follow from lengths to the host"),
    ),
    *of(
        f"{_FLASHINFER}:FlashInferIndicesUpdaterPrefill",
        (
            HOOK,
            "call_begin_forward",
            "take the lengths that the CPU has",
            "self, wrapper_ragged, wrapper_paged, *, seq_lens_cpu",
        ),
    ),
    *of(
        _FLASHINFER,
        (
            CALL,
            "fast_prefill_plan",
            "plan a verify without a look at the device",
            "self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, "
            "num_qo_heads, num_kv_heads, head_dim_qk, page_size, *, qo_indptr_host, "
            "kv_indptr_host, kv_lens_host, max_q_len, max_kv_len",
        ),
    ),
    *of(
        f"{_FLASHINFER}:FlashInferMultiStepDraftBackend",
        (
            HOOK,
            "common_template",
            "plan draft steps without a look at the device",
            "self, forward_batch",
        ),
        (READ, "topk", "know the bounds of every branch"),
        (READ, "speculative_num_steps", "know the bounds of every step"),
        (WRITE, "kv_indptr", "answer where the host copies it to the CPU"),
    ),
    *of(
        "sglang.srt.speculative.eagle_info:EagleVerifyInput",
        (READ, "topk", "tell chains from trees"),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        (READ, "forward_mode", "tell what a graph is for"),
        (READ, "positions", "count the tokens of a request"),
    ),
    # -- the index of KV slots --
    *of(
        f"{_FLASHINFER}:FlashInferAttnBackend",
        (
            HOOK,
            "init_cuda_graph_state",
            "let all tiers share one index and one mask",
            "self, max_bs, max_num_tokens, kv_indices_buf",
        ),
        (READ, "kv_indptr", "make the index of the type and on the device that it counts in"),
        (READ, "num_wrappers", "give each wrapper an index of its own"),
        (READ, "skip_prefill", "share a mask only where there is one"),
        (WRITE, "cuda_graph_kv_indices", "share the index between tiers"),
        (WRITE, "cuda_graph_custom_mask", "share the mask between tiers"),
    ),
    *of(
        f"{_FLASHINFER_MLA}:FlashInferMLAAttnBackend",
        (
            HOOK,
            "init_cuda_graph_state",
            "let all tiers share one index",
            "self, max_bs, max_num_tokens, kv_indices_buf",
        ),
        (READ, "kv_indptr", "make the index of the type and on the device that it counts in"),
    ),
    *of(
        f"{_TRITON}:TritonAttnBackend",
        (
            HOOK,
            "init_cuda_graph_state",
            "let all tiers share one index, one mask and one set of partial results",
            "self, max_bs, max_num_tokens, kv_indices_buf, *, cuda_graph_num_kv_splits_buf",
        ),
        (READ, "device", "make the index there"),
        (READ, "sliding_window_size", "know how many slots of a window a request may look up"),
        (WRITE, "cuda_graph_window_kv_indices", "share the index of windows between tiers"),
        (WRITE, "cuda_graph_attn_logits", "share partial results between tiers"),
        (WRITE, "cuda_graph_swa_attn_logits", "share partial results between tiers"),
        (WRITE, "cuda_graph_attn_lse", "share partial results between tiers"),
        (WRITE, "_verify_mask", "share the mask between tiers"),
    ),
    *of(f"{_FLASHINFER}:FlashInferMultiStepDraftBackend", *_DRAFT_STEPS),
    *of(f"{_FLASHINFER_MLA}:FlashInferMLAMultiStepDraftBackend", *_DRAFT_STEPS),
    *of(
        f"{_TRITON}:TritonMultiStepDraftBackend",
        *_DRAFT_STEPS,
        (READ, "cuda_graph_num_kv_splits", "hand the steps what the host hands them"),
    ),
    # The tables are entries of these dicts, which tests/contract/test_attention.py looks at.
    *of(
        f"{_FA3}:FlashAttentionBackend",
        (
            HOOK,
            "init_cuda_graph_state",
            "let all tiers share one table of pages and one mask",
            "self, max_bs, max_num_tokens",
        ),
        (WRITE, "decode_cuda_graph_metadata", "share its table of pages"),
        (WRITE, "target_verify_metadata", "share its table of pages"),
        (WRITE, "draft_extend_metadata", "share its table of pages"),
        (WRITE, "draft_decode_metadata_topk_normal", "share its table, of trees"),
        (WRITE, "target_verify_metadata_topk_normal", "share its table, of trees"),
        (READ, "token_to_kv_pool", "tell the windows of the target from those of the draft"),
        (WRITE, "_verify_mask", "share the mask between tiers"),
    ),
    *of(
        "sglang.srt.layers.attention.verify_mask:VerifyMask",
        (READ, "buffer", "put the shared mask in a copy of this struct"),
        (READ, "is_read", "leave a mask alone that is as small as a verify"),
    ),
    # -- lengths that bound what is looked up --
    *of(
        f"{_FA3}:FlashAttentionBackend",
        (
            HOOK,
            "init_forward_metadata",
            "gather as many pages as the longest request may have, not the whole context",
            "self, forward_batch",
        ),
        (
            HOOK,
            "_apply_cuda_graph_metadata",
            "the same before the graph of a draft-extend",
            "self, *, forward_mode, seq_lens_cpu",
        ),
    ),
    # -- graphs of draft-extends --
    *of(
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner:EagleDraftExtendInputBuffers",
        (WRITE, "extend_seq_lens", "let a capture read the width of its tier"),
    ),
    *of(
        f"{_FA3}:FlashAttentionBackend",
        (READ, "fa_impl_ver", "capture draft-extends of FA3, not of FA4"),
        (READ, "kv_index_translator", "know whether a graph can fill its table"),
        (
            CALL,
            "draft_extend_metadata_captured_in_graph",
            "know whether a graph fills its table",
            "self",
        ),
    ),
    *of(
        "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator",
        (READ, "is_translating", "know whether a graph can fill its table"),
    ),
    *of(
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
        ":EAGLEDraftExtendCudaGraphRunner",
        (CALL, "__init__", "capture draft-extends", "self, eagle_worker"),
        (
            HOOK,
            "capture_one_shape",
            "capture with the width of this tier, not of another",
            "self",
        ),
        (READ, "captured_req_width", "know that width"),
        (READ, "buffers", "find where it is read"),
        (
            OVERRIDE,
            "execute",
            "let the scheduler wait for the reads inside the graph",
            "self, forward_batch, select_index",
        ),
        (READ, "model_runner", "find the mark that the scheduler waits for"),
    ),
    *of(
        f"{_TRITON}:TritonAttnBackend",
        (
            HOOK,
            "init_forward_metadata",
            "look up as many slots as the longest request may have, not the whole context",
            "self, forward_batch",
        ),
    ),
    *of(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        (READ, "batch_size", "bound the length of each request of the forward"),
        (WRITE, "seq_lens_cpu", "tell FA3 the bound while it looks pages up"),
        (WRITE, "seq_lens_sum", "tell Triton the bound while it looks slots up"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ReqKvInfo",
        (READ, "kv_allocated_len", "know how long a request may be without a sync"),
    ),
    # -- lengths that a draft need not wait for --
    *of(
        "sglang.srt.environ:Envs",
        (READ, "SGLANG_IS_IN_CI", "take a length once where SGLang checks that"),
    ),
    *of(
        "sglang.srt.managers.scheduler:Scheduler",
        (READ, "future_map", "fetch a round's lengths for its verify"),
    ),
    *of(
        "sglang.srt.managers.overlap_utils:FutureMap",
        (WRITE, "needs_cpu_seq_lens", "have lengths copied when they are asked for"),
        (CALL, "resolve_seq_lens_cpu", "fetch a round's lengths for its verify", "self, batch"),
    ),
)
