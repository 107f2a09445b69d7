"""Arguments of the host that set how long a round takes, beside the models themselves.

Round times kept from an earlier start are used only where all of these are the same. Fields of
ServerArgs that every supported release has, as they are resolved.
"""

from __future__ import annotations

_MODELS = """
    revision speculative_draft_model_revision quantization speculative_draft_model_quantization
    dtype kv_cache_dtype speculative_draft_kv_cache_dtype json_model_override_args model_impl
    load_format speculative_draft_load_format speculative_token_map speculative_draft_window_size
    cpu_offload_gb offload_group_size offload_mode
"""
_ATTENTION = """
    attention_backend decode_attention_backend prefill_attention_backend
    speculative_draft_attention_backend speculative_attention_mode linear_attn_backend
    linear_attn_decode_backend linear_attn_verify_backend dsa_decode_backend dsa_topk_backend
    mamba_backend triton_attention_num_kv_splits page_size enable_unified_memory
    enable_page_major_kv_layout context_length
"""
_PARALLEL = """
    tp_size dp_size ep_size nnodes attn_cp_size dcp_size moe_dp_size moe_dense_tp_size
    enable_dp_lm_head disable_custom_all_reduce enable_mscclpp enable_nccl_nvls enable_symm_mem
    enable_torch_symm_mem enable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend
    enable_tp_lm_head_all_to_all
"""
_EXPERTS = """
    moe_runner_backend speculative_moe_runner_backend moe_a2a_backend speculative_moe_a2a_backend
    deepep_mode ep_num_redundant_experts disable_shared_experts_fusion
    enable_fused_moe_sum_all_reduce
"""
_KERNELS = """
    sampling_backend fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend
    enable_fp32_lm_head enable_tf32_matmul enable_torch_compile torch_compile_max_bs
    cuda_graph_backend_decode disable_cuda_graph disable_decode_cuda_graph disable_overlap_schedule
    enable_single_batch_overlap enable_mixed_chunk enable_hierarchical_cache
    speculative_use_rejection_sampling
"""
_ADAPTERS = """
    enable_lora lora_backend max_loras_per_batch max_lora_rank max_lora_chunk_size
"""
_DRAFTER = """
    speculative_algorithm speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
    speculative_ngram_match_type speculative_ngram_max_trie_depth
    speculative_ngram_external_sam_budget
"""
COST_SETTINGS = tuple(
    (_MODELS + _ATTENTION + _PARALLEL + _EXPERTS + _KERNELS + _ADAPTERS + _DRAFTER).split()
)
