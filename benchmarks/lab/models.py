"""Model folders with a config and no weights, and prompts made of token ids.

The host fills the weights with random numbers (``--load-format dummy``) and needs no tokenizer
(``--skip-tokenizer-init``), so an 8B model's round times can be measured without its weights.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT_LENGTH = 131072
LLAMA_3_1_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
}

# The usual EAGLE-3 head of that target: one layer, a draft vocabulary of 32,000.
EAGLE3_HEAD = {
    **LLAMA_3_1_8B,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}

# A small model of the same family and vocabulary: Llama 3.2 1B.
LLAMA_3_2_1B = {
    **LLAMA_3_1_8B,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}

# Experts in the shapes of Qwen3-30B-A3B, and a dense draft of one layer.
QWEN3_30B_A3B = {
    **{key: LLAMA_3_1_8B[key] for key in ("hidden_act", "torch_dtype", "attention_bias")},
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "initializer_range": 0.02,
}
QWEN3_HEAD = {
    **LLAMA_3_1_8B,
    **{
        key: QWEN3_30B_A3B[key]
        for key in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
    },
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "draft_vocab_size": 32000,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

# Ids that any of our models has and that are no special token in them.
PROMPT_IDS = range(5, 250)


# What drafts for the Llama, by the name of a drafter: the host's algorithm, and a config.
DRAFTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "eagle3": ("EAGLE3", EAGLE3_HEAD),
    "standalone": ("STANDALONE", LLAMA_3_2_1B),
}


class ModelPair(NamedTuple):
    """Folders of a target and its draft, and the host's algorithm for such a draft."""

    target: Path
    draft: Path
    algorithm: str = "EAGLE3"


def write_dummy_pair(folder: Path, drafter: str = "eagle3") -> ModelPair:
    """Writes the configs of a Llama-3.1-8B target and what drafts for it under ``folder``."""
    algorithm, draft = DRAFTERS[drafter]
    pair = ModelPair(folder / "llama-3.1-8b", folder / f"{drafter}-draft", algorithm)
    return write_pair(pair, LLAMA_3_1_8B, draft)


def write_pair(pair: ModelPair, target: Mapping[str, Any], draft: Mapping[str, Any]) -> ModelPair:
    """Writes a target's and a draft's config to their folders."""
    for path, config in ((pair.target, target), (pair.draft, draft)):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=1))
    return pair


def prompt_ids(num_prompts: int, length_tokens: int, seed: int) -> list[list[int]]:
    """Returns ``num_prompts`` random prompts; the same seed gives every arm the same ones."""
    rng = random.Random(seed)
    return [rng.choices(PROMPT_IDS, k=length_tokens) for _ in range(num_prompts)]


def read_prompts(path: Path) -> dict[str, list[list[int]]]:
    """Returns token ids per phase (``{"prose": [[..], ..], ..}``): no tokenizer is needed."""
    phases: dict[str, list[list[int]]] = json.loads(path.read_text())
    return phases
