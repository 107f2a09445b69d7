"""Tiny seeded targets of many architectures, for end-to-end tests; 1 MB each.

    python -m tools.tiny_targets DEST        writes DEST/NAME per architecture and their drafts

The idea is that of tiny_models.py: the target mostly continues a fixed cycle of tokens, pushed off
it by attention now and then. Embedding, cycle and head are those of tiny_models.py, so that its
EAGLE-3 draft serves all targets but Gemma's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # this tool makes weights
from torch import Generator, Tensor  # noqa: TID253

from tools.tiny_families import (
    CONV_WIDTH,
    EXPERT_DIM,
    EXPERTS,
    FAMILIES,
    KEY_DIM,
    KEY_HEADS,
    VALUE_DIM,
    VALUE_HEADS,
    Family,
)
from tools.tiny_models import (
    DRAFT_STD,
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
from tools.tiny_vision import SPECIAL_TOKENS, vision_weights, write_processor

ROUTER_STD, BIAS_STD = 0.3, 0.3
# As sharp as attention without a norm: an entry of q or k has this size there.
QK_NORM = TARGET_QK_STD * HIDDEN**0.5
GATED_OUT_STD = 0.3  # a gated output is smaller; found by trial
# Gemma adds what is normed, and its head is its embedding: see `_gemma`.
GEMMA_ATTENTION, GEMMA_SUCCESSOR = 2.0, 20.0


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
        weights |= vision_weights(family.vision, generator)
        write_model(folders[name], _config_with_vision(family), weights, SPECIAL_TOKENS)
        write_processor(folders[name], family.vision)
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


def _normal(std: float, generator: Generator, *shape: int) -> Tensor:
    return std * torch.randn(*shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to write the models into")
    for name, folder in make_tiny_targets(parser.parse_args().dest).items():
        print(f"{name}: {folder}")  # noqa: T201  # a command-line program


if __name__ == "__main__":
    main()
