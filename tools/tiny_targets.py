"""Tiny seeded targets of many architectures, for end-to-end tests with one EAGLE-3 draft.

    python -m tools.tiny_targets DEST        writes DEST/NAME per architecture, 1 MB each

The idea is that of tiny_models.py: the target mostly continues a fixed cycle of tokens, pushed off
it by attention now and then. Embedding, cycle and head are those of tiny_models.py, so its EAGLE-3
draft serves them all. A family says how it differs from Llama.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # this tool makes weights
from torch import Generator, Tensor  # noqa: TID253

from tools.tiny_models import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    TARGET_MLP_STD,
    TARGET_QK_STD,
    TARGET_SEED,
    TARGET_VO_STD,
    VOCAB,
    Weights,
    base_config,
    random_cycle,
    random_head,
    write_model,
)

EXPERTS, EXPERT_DIM, EXPERTS_PER_TOKEN = 4, 64, 2
ROUTER_STD, BIAS_STD = 0.3, 0.3
# As sharp as attention without a norm: a row of q or k has this length there.
QK_NORM = TARGET_QK_STD * HIDDEN**0.5
WINDOW = 32  # tokens; shorter than the longer prompts and than every answer


@dataclass(frozen=True)
class Family:
    """How an architecture's config and weights differ from Llama's."""

    config: Mapping[str, Any]
    qkv_bias: bool = False
    out_bias: bool = False  # of the attention's last projection
    qk_norm: bool = False
    has_sinks: bool = False
    experts: str | None = None  # how their weights are named and laid out


MOE_CONFIG = {"num_experts_per_tok": EXPERTS_PER_TOKEN, "moe_intermediate_size": EXPERT_DIM}
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
            **MOE_CONFIG,
        },
        qk_norm=True,
        experts="qwen",
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
            **MOE_CONFIG,
        },
        qkv_bias=True,
        qk_norm=True,
        experts="glm",
    ),
    "gpt-oss": Family(
        {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
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
}


def make_tiny_targets(dest: str | Path) -> dict[str, Path]:
    """Writes every architecture under dest and returns the folders by name."""
    folders = {}
    for name, family in FAMILIES.items():
        generator = torch.Generator().manual_seed(TARGET_SEED)
        embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        cycle = random_cycle(generator)
        weights = {
            "model.embed_tokens.weight": embedding,
            "model.norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": random_head(embedding, cycle, generator),
        }
        for layer in range(LAYERS):
            weights |= _layer(f"model.layers.{layer}", family, generator)
        folders[name] = Path(dest) / name
        write_model(folders[name], base_config(**family.config), weights)
    return folders


def _layer(prefix: str, family: Family, generator: Generator) -> Weights:
    weights = {
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        **_attention(f"{prefix}.self_attn", family, generator),
    }
    mlp = f"{prefix}.mlp"
    if family.experts is None:
        return weights | _feed_forward(mlp, generator, INTERMEDIATE)
    if family.experts == "gpt-oss":
        return weights | _stacked_experts(mlp, generator)
    weights[f"{mlp}.gate.weight"] = _normal(ROUTER_STD, generator, EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        weights |= _feed_forward(f"{mlp}.experts.{expert}", generator, EXPERT_DIM)
    if family.experts == "glm":
        weights[f"{mlp}.gate.e_score_correction_bias"] = _normal(0.1, generator, EXPERTS)
        weights |= _feed_forward(f"{mlp}.shared_experts", generator, EXPERT_DIM)
    return weights


def _attention(prefix: str, family: Family, generator: Generator) -> Weights:
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    weights = {}
    for name, num_rows in rows.items():
        std = TARGET_VO_STD if name == "v" else TARGET_QK_STD
        weights[f"{prefix}.{name}_proj.weight"] = _normal(std, generator, num_rows, HIDDEN)
        if family.qkv_bias:
            weights[f"{prefix}.{name}_proj.bias"] = _normal(BIAS_STD, generator, num_rows)
    weights[f"{prefix}.o_proj.weight"] = _normal(TARGET_VO_STD, generator, HIDDEN, HEADS * HEAD_DIM)
    if family.out_bias:
        weights[f"{prefix}.o_proj.bias"] = _normal(BIAS_STD, generator, HIDDEN)
    if family.qk_norm:
        for name in ("q", "k"):
            weights[f"{prefix}.{name}_norm.weight"] = torch.full((HEAD_DIM,), QK_NORM)
    if family.has_sinks:
        weights[f"{prefix}.sinks"] = _normal(1.0, generator, HEADS)
    return weights


def _feed_forward(prefix: str, generator: Generator, width: int) -> Weights:
    return {
        f"{prefix}.{name}_proj.weight": _normal(TARGET_MLP_STD, generator, *shape)
        for name, shape in (
            ("gate", (width, HIDDEN)),
            ("up", (width, HIDDEN)),
            ("down", (HIDDEN, width)),
        )
    }


def _stacked_experts(prefix: str, generator: Generator) -> Weights:
    """gpt-oss: all experts in one tensor, input dimension first, gate and up interleaved."""

    def normal(std: float, *shape: int) -> Tensor:
        return _normal(std, generator, *shape)

    experts = f"{prefix}.experts"
    return {
        f"{prefix}.router.weight": normal(ROUTER_STD, EXPERTS, HIDDEN),
        f"{prefix}.router.bias": normal(BIAS_STD, EXPERTS),
        f"{experts}.gate_up_proj": normal(TARGET_MLP_STD, EXPERTS, HIDDEN, 2 * EXPERT_DIM),
        f"{experts}.gate_up_proj_bias": normal(BIAS_STD, EXPERTS, 2 * EXPERT_DIM),
        f"{experts}.down_proj": normal(TARGET_MLP_STD, EXPERTS, EXPERT_DIM, HIDDEN),
        f"{experts}.down_proj_bias": normal(BIAS_STD, EXPERTS, HIDDEN),
    }


def _normal(std: float, generator: Generator, *shape: int) -> Tensor:
    return std * torch.randn(*shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to write the models into")
    for name, folder in make_tiny_targets(parser.parse_args().dest).items():
        print(f"{name}: {folder}")  # noqa: T201  # a command-line program


if __name__ == "__main__":
    main()
