"""The architectures of tiny_targets.py: how each one's config and weights differ from Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.tiny_models import HEAD_DIM, LAYERS
from tools.tiny_vision import QWEN2_5_VISION, QWEN3_VISION, TOKEN_IDS

EXPERTS, EXPERT_DIM, EXPERTS_PER_TOKEN = 4, 64, 2
WINDOW = 32  # tokens; shorter than the longer prompts and than every answer
# Recurrent layers. No two sizes are equal, so that no shape hides a mistake.
KEY_HEADS, VALUE_HEADS, CONV_WIDTH = 2, 4, 4
# A GPU's kernels know the real model's 128.
KEY_DIM, VALUE_DIM = (24, 32) if HEAD_DIM == 32 else (128, 128)

MROPE = {
    "rope_type": "default",
    "type": "default",
    "mrope_section": [each * HEAD_DIM // 32 for each in (4, 6, 6)],
}


@dataclass(frozen=True)
class Family:
    """How an architecture's config and weights differ from Llama's."""

    config: Mapping[str, Any]
    qkv_bias: bool = False
    out_bias: bool = False  # of the attention's last projection
    qk_norm: bool = False
    has_sinks: bool = False
    experts: str | None = None  # how their weights are named and laid out
    unit_norm: float = 1.0  # the weight of a norm that leaves the size; 0 where the host adds 1
    recurrent: tuple[int, ...] = ()  # layers that are not attention
    gates_output: bool = False
    mtp: str | None = None  # how the weights of the draft inside the target are named
    vision: Mapping[str, Any] | None = None


EXPERT_CONFIG = {"num_experts_per_tok": EXPERTS_PER_TOKEN, "moe_intermediate_size": EXPERT_DIM}
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
FAMILIES = {
    "qwen2": Family(
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        qkv_bias=True,
    ),
    "qwen3": Family(
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        qk_norm=True,
    ),
    "qwen3-moe": Family(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": EXPERTS,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            **EXPERT_CONFIG,
        },
        qk_norm=True,
        experts="qwen",
    ),
    "qwen3-next": Family(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "torch_dtype": "float32",  # the host takes a norm's from here, not from --dtype
            "full_attention_interval": 2,
            "linear_num_key_heads": KEY_HEADS,
            "linear_num_value_heads": VALUE_HEADS,
            "linear_key_head_dim": KEY_DIM,
            "linear_value_head_dim": VALUE_DIM,
            "linear_conv_kernel_dim": CONV_WIDTH,
            "partial_rotary_factor": 0.5,
            "num_experts": EXPERTS,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            "shared_expert_intermediate_size": EXPERT_DIM,
            **EXPERT_CONFIG,
        },
        qk_norm=True,
        experts="qwen-next",
        unit_norm=0.0,
        recurrent=(0, 2),
        gates_output=True,
    ),
    "qwen2.5-vl": Family(
        {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "rope_scaling": MROPE,
            **TOKEN_IDS,
        },
        qkv_bias=True,
        vision=QWEN2_5_VISION,
    ),
    "qwen3-vl": Family(
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "rope_scaling": {**MROPE, "mrope_interleaved": True},
            **TOKEN_IDS,
        },
        qk_norm=True,
        vision=QWEN3_VISION,
    ),
    "gemma3": Family(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_act": None,
            "query_pre_attn_scalar": HEAD_DIM,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
            "rope_theta": None,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            },
        },
        qk_norm=True,
        unit_norm=0.0,
    ),
    "gpt-oss": Family(
        {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "torch_dtype": "float32",  # the host takes the attention's from here, not from --dtype
            "attention_bias": True,
            "num_local_experts": EXPERTS,
            "intermediate_size": EXPERT_DIM,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "swiglu_limit": 7.0,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
        },
        qkv_bias=True,
        out_bias=True,
        has_sinks=True,
        experts="gpt-oss",
    ),
    "glm4-moe": Family(
        {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 1,
            **EXPERT_CONFIG,
        },
        qkv_bias=True,
        qk_norm=True,
        experts="glm",
        mtp="glm",
    ),
    "mimo": Family(
        # Its own config class comes with its checkpoint and is Qwen2's.
        {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "qwen2",
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
        },
        qkv_bias=True,
        mtp="mimo",
    ),
}
