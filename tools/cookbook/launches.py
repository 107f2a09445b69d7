"""Launch lines of SGLang's cookbook, and the shapes of the models that they name.

Lines as in `docs_new` of sgl-project/sglang, autumn 2026, for H200s: everything but what says where
to listen, how to load, how to parse. What they say of speculation is asked of ADAPTIVE_EAGLE.
Shapes are those that the models' makers published; a config holds what resolution reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_adaptive_spec.contract.versions import SUPPORTED

Config = Mapping[str, Any]

FP8: Config = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
COMMON: Config = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}
DEEPSEEK_V3: Config = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "vocab_size": 129280,
    "quantization_config": FP8,
}
DEEPSEEK_V32: Config = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}
GLM_52: Config = {
    **DEEPSEEK_V32,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "index_n_heads": 32,
    "index_share_for_mtp_iteration": True,
    "max_position_embeddings": 1048576,
    "vocab_size": 154880,
}
KIMI_K25: Config = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "torch_dtype": "bfloat16",
    "text_config": {
        **DEEPSEEK_V3,
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": 262144,
        "vocab_size": 163840,
        "quantization_config": None,
    },
}
KIMI_HEAD: Config = {
    **KIMI_K25["text_config"],
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "num_hidden_layers": 1,
}
QWEN3_235B: Config = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
    "vocab_size": 151936,
    "quantization_config": FP8,
}
LLAMA_HEAD: Config = {
    **COMMON,
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "draft_vocab_size": 32000,
}
QWEN3_HEAD: Config = {
    **LLAMA_HEAD,
    "hidden_size": 4096,
    "intermediate_size": 24576,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
GPT_OSS_120B: Config = {
    **COMMON,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "vocab_size": 201088,
    "quantization_config": {"quant_method": "mxfp4"},
}
GPT_OSS_HEAD: Config = {
    **LLAMA_HEAD,
    "hidden_size": 2880,
    "intermediate_size": 17280,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
}
MIMO_V2_FLASH: Config = {
    **COMMON,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "llama",  # its own type comes as code with the checkpoint
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "hybrid_layer_pattern": [int(layer not in (0, *range(5, 48, 6))) for layer in range(48)],
    "moe_layer_freq": [0, *[1] * 47],
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
    "vocab_size": 152576,
    "quantization_config": FP8,
}
GEMMA4_TEXT: Config = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 30,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "sliding_window": 1024,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 5,
    "max_position_embeddings": 262144,
    "vocab_size": 262144,
}
GEMMA4: Config = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "torch_dtype": "bfloat16",
    "text_config": GEMMA4_TEXT,
}
GEMMA4_ASSISTANT: Config = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "torch_dtype": "bfloat16",
    "backbone_hidden_size": 2816,
    "text_config": {
        **GEMMA4_TEXT,
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 8192,
        "enable_moe_block": False,
        "num_kv_shared_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
}

RANKS = "--dp-size 8 --enable-dp-attention"
DEEPEP = f"--tp-size 8 {RANKS} --moe-a2a-backend deepep --max-running-requests 256"
CODE = "--trust-remote-code"
MEMORY = "--mem-fraction-static 0.85"


@dataclass(frozen=True, slots=True)
class Launch:
    """A line of the cookbook, without the algorithm and the paths of its models."""

    name: str
    arguments: str  # that decide what is served
    num_steps: int | None  # asked for
    target: Config
    draft: Config | None = None
    others: str = MEMORY  # that do not
    releases: str = SUPPORTED  # that read its models with the tests' transformers


LAUNCHES = (
    Launch("GLM-5.2, low latency", "--tp-size 8", 5, GLM_52, others="--mem-fraction-static 0.8"),
    Launch("GLM-5.2, balanced", DEEPEP, 1, GLM_52, others=f"{MEMORY} --chunked-prefill-size 32768"),
    Launch("GLM-5.2, high throughput", DEEPEP, None, GLM_52),
    Launch("DeepSeek-V3.2", "--tp-size 8", 3, DEEPSEEK_V32, others=""),
    Launch("DeepSeek-V3.2, attention DP", f"--tp-size 8 {RANKS}", 3, DEEPSEEK_V32, others=""),
    Launch("Kimi-K2.5", "--tp-size 8", 3, KIMI_K25, KIMI_HEAD, CODE),
    Launch("Kimi-K2.5, attention DP", f"--tp-size 8 {RANKS}", 3, KIMI_K25, KIMI_HEAD, CODE),
    Launch("Qwen3-235B-A22B", "--tp-size 8 --ep-size 2", 3, QWEN3_235B, QWEN3_HEAD, ""),
    Launch("gpt-oss-120b", "--tp-size 8", 3, GPT_OSS_120B, GPT_OSS_HEAD, ""),
    Launch(
        "MiMo-V2-Flash",
        "--tp-size 8 --dp-size 2 --enable-dp-attention --max-running-requests 128"
        " --attention-backend fa3 --enable-multi-layer-eagle",
        3,
        MIMO_V2_FLASH,
        others=f"--mem-fraction-static 0.75 --chunked-prefill-size 16384 {CODE}",
    ),
    Launch("Gemma 4 26B-A4B", "--tp-size 2", 5, GEMMA4, GEMMA4_ASSISTANT, releases="<0.5.22"),
)
