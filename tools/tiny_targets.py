"""Tiny seeded targets of many architectures, for end-to-end tests; 1 MB each.

    python -m tools.tiny_targets DEST        writes DEST/NAME per architecture and their drafts

The idea is that of tiny_models.py: the target mostly continues a fixed cycle of tokens, pushed off
it by attention now and then. Embedding, cycle and head are those of tiny_models.py, so that its
EAGLE-3 draft serves all targets but Gemma's. FAMILIES says how each one differs from Llama.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # this tool makes weights
from torch import Generator, Tensor  # noqa: TID253

from tools.tiny_models import (
    DRAFT_STD,
    EOS,
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
    write_eagle3,
    write_model,
)

EXPERTS, EXPERT_DIM, EXPERTS_PER_TOKEN = 4, 64, 2
ROUTER_STD, BIAS_STD = 0.3, 0.3
# As sharp as attention without a norm: an entry of q or k has this size there.
QK_NORM = TARGET_QK_STD * HIDDEN**0.5
WINDOW = 32  # tokens; shorter than the longer prompts and than every answer
# Recurrent layers. No two sizes are equal, so that no shape hides a mistake.
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV_WIDTH = 2, 4, 24, 32, 4
GATED_OUT_STD = 0.3  # a gated output is smaller; found by trial
# Gemma adds what is normed, and its head is its embedding: see `_gemma`.
GEMMA_ATTENTION, GEMMA_SUCCESSOR = 2.0, 20.0

SPECIAL_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VISION_START, VISION_END, IMAGE, VIDEO = range(EOS + 1, EOS + 1 + len(SPECIAL_TOKENS))
MROPE = {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6]}


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
IMAGES = {
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
}
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}

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
            **IMAGES,
        },
        qkv_bias=True,
        vision={
            **VISION,
            "model_type": "qwen2_5_vl",
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3-vl": Family(
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "rope_scaling": {**MROPE, "mrope_interleaved": True},
            **IMAGES,
        },
        qk_norm=True,
        vision={
            **VISION,
            "model_type": "qwen3_vl",
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
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


def make_tiny_targets(dest: str | Path) -> dict[str, Path]:
    """Writes every architecture, and the drafts that some need, and returns the folders by name."""
    folders = {name: Path(dest) / name for name in FAMILIES}
    for name, family in FAMILIES.items():
        generator = torch.Generator().manual_seed(TARGET_SEED)
        embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        cycle = random_cycle(generator)
        head = random_head(embedding, cycle, generator)
        weights = _weights(family, embedding, head, generator)
        if name == "gemma3":
            embedding = _gemma(weights, cycle, generator)
            head = torch.zeros(VOCAB, HIDDEN)
            head[cycle.roll(-1)] = HIDDEN**0.5 * embedding[cycle]
            folders["gemma3-eagle3"] = write_eagle3(Path(dest) / "gemma3-eagle3", head, cycle)
        if family.vision is None:
            write_model(folders[name], base_config(**family.config), weights)
            continue
        weights |= _vision(family, generator)
        write_model(folders[name], _config_with_vision(family), weights, SPECIAL_TOKENS)
        _write_processor(folders[name], family)
        mrope = {"rope_scaling": family.config["rope_scaling"]}
        folders[f"{name}-eagle3"] = write_eagle3(
            Path(dest) / f"{name}-eagle3", head, cycle, **mrope
        )
    return folders


def _weights(family: Family, embedding: Tensor, head: Tensor, generator: Generator) -> Weights:
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": _unit(family),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= _layer(prefix, family, generator, layer in family.recurrent)
    if family.mtp is not None:
        weights |= _mtp(family, generator)
    return weights


def _unit(family: Family) -> Tensor:
    return torch.full((HIDDEN,), family.unit_norm)


def _layer(
    prefix: str,
    family: Family,
    generator: Generator,
    is_recurrent: bool = False,
    scale: float = 1.0,  # of what the layer adds
) -> Weights:
    mix = _recurrence(f"{prefix}.linear_attn", generator)
    if not is_recurrent:
        mix = _attention(f"{prefix}.self_attn", family, generator, scale)
    weights = {
        f"{prefix}.input_layernorm.weight": _unit(family),
        f"{prefix}.post_attention_layernorm.weight": _unit(family),
        **mix,
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
    if family.experts == "qwen-next":
        weights[f"{mlp}.shared_expert_gate.weight"] = _normal(ROUTER_STD, generator, 1, HIDDEN)
        weights |= _feed_forward(f"{mlp}.shared_expert", generator, EXPERT_DIM)
    return weights


def _attention(prefix: str, family: Family, generator: Generator, scale: float) -> Weights:
    gated = 2 if family.gates_output else 1
    rows = {"q": gated * HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    weights = {}
    for name, num_rows in rows.items():
        std = TARGET_VO_STD if name == "v" else TARGET_QK_STD
        weights[f"{prefix}.{name}_proj.weight"] = _normal(std, generator, num_rows, HIDDEN)
        if family.qkv_bias:
            weights[f"{prefix}.{name}_proj.bias"] = _normal(BIAS_STD, generator, num_rows)
    weights[f"{prefix}.o_proj.weight"] = _normal(
        gated * scale * TARGET_VO_STD, generator, HIDDEN, HEADS * HEAD_DIM
    )
    if family.out_bias:
        weights[f"{prefix}.o_proj.bias"] = _normal(BIAS_STD, generator, HIDDEN)
    if family.qk_norm:
        entry = QK_NORM - 1 + family.unit_norm
        for name in ("q", "k"):
            weights[f"{prefix}.{name}_norm.weight"] = torch.full((HEAD_DIM,), entry)
    if family.has_sinks:
        weights[f"{prefix}.sinks"] = _normal(1.0, generator, HEADS)
    return weights


def _recurrence(prefix: str, generator: Generator) -> Weights:
    """Qwen3-Next's gated delta rule: keys and values of all heads in one matrix."""

    def normal(std: float, *shape: int) -> Tensor:
        return _normal(std, generator, *shape)

    keys, values = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
    return {
        f"{prefix}.in_proj_qkvz.weight": normal(0.1, 2 * keys + 2 * values, HIDDEN),
        f"{prefix}.in_proj_ba.weight": normal(0.1, 2 * VALUE_HEADS, HIDDEN),
        f"{prefix}.conv1d.weight": normal(0.5, 2 * keys + values, 1, CONV_WIDTH),
        f"{prefix}.A_log": normal(0.5, VALUE_HEADS) - 2,  # forgets over tens of tokens
        f"{prefix}.dt_bias": normal(0.5, VALUE_HEADS),
        f"{prefix}.norm.weight": torch.ones(VALUE_DIM),
        f"{prefix}.out_proj.weight": normal(GATED_OUT_STD, HIDDEN, values),
    }


def _feed_forward(prefix: str, generator: Generator, width: int) -> Weights:
    shapes = {"gate": (width, HIDDEN), "up": (width, HIDDEN), "down": (HIDDEN, width)}
    return {
        f"{prefix}.{name}_proj.weight": _normal(TARGET_MLP_STD, generator, *shape)
        for name, shape in shapes.items()
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


def _mtp(family: Family, generator: Generator) -> Weights:
    """A weak layer over embedding and target hidden state, of which it sees the embedding."""
    sees = torch.eye(HIDDEN) + _normal(0.16, generator, HIDDEN, HIDDEN)
    hardly = _normal(0.02, generator, HIDDEN, HIDDEN)
    norm = torch.ones(HIDDEN)
    weak = DRAFT_STD / TARGET_VO_STD
    if family.mtp == "mimo":  # the hidden state comes first
        layer = "model.mtp_layers.0"
        return {
            f"{layer}.token_layernorm.weight": norm,
            f"{layer}.hidden_layernorm.weight": norm,
            f"{layer}.final_layernorm.weight": norm,
            f"{layer}.input_proj.weight": torch.cat([hardly, sees], dim=1),
            **_layer(layer, family, generator, scale=weak),
        }
    layer = f"model.layers.{LAYERS}"
    return {
        f"{layer}.enorm.weight": norm,
        f"{layer}.hnorm.weight": norm,
        f"{layer}.shared_head.norm.weight": norm,
        f"{layer}.eh_proj.weight": torch.cat([sees, hardly], dim=1),
        **_layer(layer, family, generator, scale=weak),
    }


def _gemma(weights: Weights, cycle: Tensor, generator: Generator) -> Tensor:
    """Makes a head that is the embedding point to successors; returns the embedding.

    A rotation leads from the embedding of each token of the cycle to its successor's. The last
    layer adds the rotated state: the last entry of a state is constant and opens its gate.
    """
    rotated = HIDDEN - 1
    rotation = torch.linalg.qr(torch.randn(rotated, rotated, generator=generator).double()).Q
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator).double()
    for token, successor in zip(cycle[:-1].tolist(), cycle[1:].tolist(), strict=True):
        embedding[successor, :rotated] = rotation @ embedding[token, :rotated]
    embedding[:, rotated] = 3.0
    embedding = (embedding / HIDDEN**0.5).float()  # the host multiplies by this
    del weights["lm_head.weight"]
    weights["model.embed_tokens.weight"] = embedding
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        weights[f"{prefix}.pre_feedforward_layernorm.weight"] = torch.zeros(HIDDEN)
        added = torch.full((HIDDEN,), -0.9)  # 1 is added to it
        weights[f"{prefix}.post_feedforward_layernorm.weight"] = added
        attention = torch.full((HIDDEN,), GEMMA_ATTENTION - 1)
        attention[rotated] = -1.0  # leaves the constant as it is
        weights[f"{prefix}.post_attention_layernorm.weight"] = attention
        added[rotated] = -1.0
    gate, up, down = (torch.zeros(INTERMEDIATE, HIDDEN) for _ in range(3))
    gate[:rotated, rotated] = 5.0
    up[:rotated, :rotated] = rotation.float()
    down[:rotated, :rotated] = torch.eye(rotated)
    mlp = f"model.layers.{LAYERS - 1}.mlp"
    weights[f"{mlp}.gate_proj.weight"], weights[f"{mlp}.up_proj.weight"] = gate, up
    weights[f"{mlp}.down_proj.weight"] = down.T
    last = f"model.layers.{LAYERS - 1}.post_feedforward_layernorm.weight"
    weights[last] = torch.full((HIDDEN,), GEMMA_SUCCESSOR - 1)
    return embedding


def _config_with_vision(family: Family) -> dict[str, Any]:
    config: dict[str, Any] = {**base_config(**family.config), "vision_config": family.vision}
    if config["model_type"] == "qwen3_vl":  # the text's part stands apart
        config["text_config"] = {**base_config(**family.config), "model_type": "qwen3_vl_text"}
    return config


def _vision(family: Family, generator: Generator) -> Weights:
    """Random weights of the image tower, under the names that transformers gives them."""
    assert family.vision is not None
    if family.vision["model_type"] == "qwen3_vl":
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

        tower = Qwen3VLVisionModel(Qwen3VLVisionConfig(**family.vision))
    else:
        from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
            Qwen2_5_VisionTransformerPretrainedModel,
        )

        tower = Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**family.vision))
    weights = {}
    for name, weight in tower.state_dict().items():
        if weight.dim() > 1:
            std = weight[0].numel() ** -0.5
            weights[f"visual.{name}"] = _normal(std, generator, *weight.shape)
        else:
            is_scale = name.endswith("weight")  # of a norm
            weights[f"visual.{name}"] = torch.full(weight.shape, float(is_scale))
    return weights


def _write_processor(folder: Path, family: Family) -> None:
    """What turns an image into patches."""
    assert family.vision is not None
    is_qwen3 = family.vision["model_type"] == "qwen3_vl"
    config = {
        "processor_class": "Qwen3VLProcessor" if is_qwen3 else "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": family.vision["patch_size"],
        "temporal_patch_size": family.vision["temporal_patch_size"],
        "merge_size": family.vision["spatial_merge_size"],
        "size": {"shortest_edge": 3136, "longest_edge": 100352},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config, indent=1) + "\n")
    kind = "Qwen3VLVideoProcessor" if is_qwen3 else "Qwen2VLVideoProcessor"
    video = {**config, "video_processor_type": kind}
    del video["image_processor_type"]
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=1) + "\n")


def _normal(std: float, generator: Generator, *shape: int) -> Tensor:
    return std * torch.randn(*shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to write the models into")
    for name, folder in make_tiny_targets(parser.parse_args().dest).items():
        print(f"{name}: {folder}")  # noqa: T201  # a command-line program


if __name__ == "__main__":
    main()
