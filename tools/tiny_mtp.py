"""A tiny seeded DeepSeek-V3 with one layer of multi-token prediction, for end-to-end tests on MLA.

    python -m tools.tiny_mtp DEST        writes DEST/mtp, about 2 MB

With an indexer, as DeepSeek-V3.2 and GLM-5 have it, tokens attend to those 2,048 that it picks.

The idea is that of tiny_models.py: the target mostly continues a fixed cycle of tokens, pushed off
it by attention now and then; the MTP layer passes the embedding on and so knows the cycle.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch  # noqa: TID253  # this tool makes weights
from torch import Generator, Tensor  # noqa: TID253

from tools.tiny_models import (
    DRAFT_STD,
    HIDDEN,
    VOCAB,
    Weights,
    base_config,
    random_cycle,
    random_head,
    write_model,
)

LAYERS, DENSE_LAYERS = 3, 1  # the MTP layer comes after them and has experts
HEADS, Q_RANK = 4, 64
INTERMEDIATE, EXPERT_DIM, EXPERTS = 256, 64, 4

SEED = 7
# Found by trial: greedy text stays varied, and three drafts are accepted to 1.3 on average.
TARGET_QK_STD, TARGET_VO_STD, TARGET_MLP_STD = 0.3, 0.16, 0.05
ROUTER_STD, ROUTER_BIAS_STD = 0.3, 0.1


class Widths(NamedTuple):
    """What latent attention distinguishes, per head but for the rank of keys and values.

    A hidden state holds the same HIDDEN numbers ``copies`` times over. What is computed from it
    does not depend on how often: the host's kernels for MTP want wide ones, the text is the same.
    """

    kv_rank: int
    nope: int
    rope: int
    value: int
    copies: int = 1


class Indexer(NamedTuple):
    """What picks the tokens that a layer attends to: the kernels know these numbers only."""

    heads: int = 32
    head_dim: int = 128
    topk: int = 2048
    shares_for_mtp: bool = False  # the draft's first step picks for all of its steps (GLM-5.2)


SMALL_WIDTHS = Widths(48, 24, 16, 32)  # no two are equal, so that no shape hides a mistake
# DeepSeek's own: MLA kernels are made for no other. And a hidden state of 512: the kernel before
# the MTP layer takes no narrower one (sglang 0.5.21 kernels/ops/layernorm/fused_eh_norm.py).
KERNEL_WIDTHS = Widths(512, 128, 64, 128, copies=4)

# By the end of a weight's name: what it does with the hidden state.
READS_HIDDEN = (
    *("lm_head", "q_a_proj", "kv_a_proj_with_mqa", "gate", "gate_proj", "up_proj"),
    *("wk", "weights_proj"),
)
WRITES_HIDDEN = ("o_proj", "down_proj")
HIDDEN_NORMS = ("norm", "enorm", "hnorm", "input_layernorm", "post_attention_layernorm")


def make_tiny_mtp(
    dest: str | Path, widths: Widths = SMALL_WIDTHS, indexer: Indexer | None = None
) -> Path:
    """Writes target and draft, which are one model, under dest and returns the folder."""
    generator = torch.Generator().manual_seed(SEED)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    cycle = random_cycle(generator)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random_head(embedding, cycle, generator),
    }
    for layer in range(LAYERS):
        weights |= _layer(
            f"model.layers.{layer}",
            generator,
            widths,
            qk_std=TARGET_QK_STD,
            vo_std=TARGET_VO_STD,
            mlp_std=TARGET_MLP_STD,
            has_experts=layer >= DENSE_LAYERS,
        )
    weights |= _mtp_layer(f"model.layers.{LAYERS}", generator, widths)
    if indexer is not None:
        for layer in range(LAYERS + 1):
            weights |= _indexer(f"model.layers.{layer}.self_attn.indexer", generator, indexer)
    folder = Path(dest) / "mtp"
    weights = {name: _widened(name, weight, widths.copies) for name, weight in weights.items()}
    config = _config(widths) if indexer is None else _sparse_config(widths, indexer)
    write_model(folder, config, weights)
    return folder


def _widened(name: str, weight: Tensor, copies: int) -> Tensor:
    """Returns the weight that does the same to a hidden state which holds everything repeatedly."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind == "embed_tokens":
        return weight.repeat(1, copies)
    if kind in READS_HIDDEN:
        return weight.repeat(1, copies) / copies
    if kind in WRITES_HIDDEN:
        return weight.repeat(copies, 1)
    if kind in HIDDEN_NORMS:
        return weight.repeat(copies)
    if kind == "eh_proj":  # reads an embedding and a hidden state, writes one
        halves = [half.repeat(copies, copies) / copies for half in weight.chunk(2, dim=1)]
        return torch.cat(halves, dim=1)
    return weight


def _mtp_layer(prefix: str, generator: Generator, widths: Widths) -> Weights:
    """A weak layer over [embedding; target hidden], of which it sees the embedding."""
    passed_on = torch.eye(HIDDEN) + _normal(0.2, generator, HIDDEN, HIDDEN)
    return {
        f"{prefix}.enorm.weight": torch.ones(HIDDEN),
        f"{prefix}.hnorm.weight": torch.ones(HIDDEN),
        f"{prefix}.shared_head.norm.weight": torch.ones(HIDDEN),
        f"{prefix}.eh_proj.weight": torch.cat(
            [passed_on, _normal(0.02, generator, HIDDEN, HIDDEN)], dim=1
        ),
        **_layer(prefix, generator, widths, DRAFT_STD, DRAFT_STD, DRAFT_STD, has_experts=True),
    }


def _layer(
    prefix: str,
    generator: Generator,
    widths: Widths,
    qk_std: float,
    vo_std: float,
    mlp_std: float,
    has_experts: bool,
) -> Weights:
    """One random layer of multi-head latent attention; what it adds is as large at any widths."""
    kv_rank, nope, rope, value, _ = widths
    narrower = (SMALL_WIDTHS.kv_rank / kv_rank) ** 0.5
    out_std = vo_std * (SMALL_WIDTHS.value / value) ** 0.5

    def normal(std: float, rows: int, columns: int) -> Tensor:
        return _normal(std, generator, rows, columns)

    attention = f"{prefix}.self_attn"
    key_value = [
        narrower * torch.cat([normal(qk_std, nope, kv_rank), normal(vo_std, value, kv_rank)])
        for _ in range(HEADS)
    ]
    weights = {
        f"{attention}.q_a_proj.weight": normal(qk_std, Q_RANK, HIDDEN),
        f"{attention}.q_a_layernorm.weight": torch.ones(Q_RANK),
        f"{attention}.q_b_proj.weight": normal(qk_std, HEADS * (nope + rope), Q_RANK),
        f"{attention}.kv_a_proj_with_mqa.weight": normal(qk_std, kv_rank + rope, HIDDEN),
        f"{attention}.kv_a_layernorm.weight": torch.ones(kv_rank),
        f"{attention}.kv_b_proj.weight": torch.cat(key_value),
        f"{attention}.o_proj.weight": normal(out_std, HIDDEN, HEADS * value),
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    mlp = f"{prefix}.mlp"
    if not has_experts:
        return weights | _feed_forward(mlp, generator, INTERMEDIATE, mlp_std)
    weights[f"{mlp}.gate.weight"] = normal(ROUTER_STD, EXPERTS, HIDDEN)
    weights[f"{mlp}.gate.e_score_correction_bias"] = _normal(ROUTER_BIAS_STD, generator, EXPERTS)
    for place in ("shared_experts", *(f"experts.{number}" for number in range(EXPERTS))):
        weights |= _feed_forward(f"{mlp}.{place}", generator, EXPERT_DIM, mlp_std)
    return weights


def _indexer(prefix: str, generator: Generator, indexer: Indexer) -> Weights:
    return {
        f"{prefix}.wq_b.weight": _normal(
            TARGET_QK_STD, generator, indexer.heads * indexer.head_dim, Q_RANK
        ),
        f"{prefix}.wk.weight": _normal(TARGET_QK_STD, generator, indexer.head_dim, HIDDEN),
        f"{prefix}.weights_proj.weight": _normal(TARGET_QK_STD, generator, indexer.heads, HIDDEN),
        f"{prefix}.k_norm.weight": torch.ones(indexer.head_dim),
        f"{prefix}.k_norm.bias": torch.zeros(indexer.head_dim),
    }


def _feed_forward(prefix: str, generator: Generator, width: int, std: float) -> Weights:
    return {
        f"{prefix}.gate_proj.weight": _normal(std, generator, width, HIDDEN),
        f"{prefix}.up_proj.weight": _normal(std, generator, width, HIDDEN),
        f"{prefix}.down_proj.weight": _normal(std, generator, HIDDEN, width),
    }


def _normal(std: float, generator: Generator, *shape: int) -> Tensor:
    return std * torch.randn(*shape, generator=generator)


def _config(widths: Widths) -> dict[str, Any]:
    """As DeepSeek-V3's, small; the host's CPU branch knows its own kind of rope scaling only."""
    return base_config(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        hidden_size=HIDDEN * widths.copies,
        num_hidden_layers=LAYERS,
        num_nextn_predict_layers=1,
        first_k_dense_replace=DENSE_LAYERS,
        moe_layer_freq=1,
        intermediate_size=INTERMEDIATE,
        moe_intermediate_size=EXPERT_DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=None,  # follows from the ranks
        q_lora_rank=Q_RANK,
        kv_lora_rank=widths.kv_rank,
        qk_nope_head_dim=widths.nope,
        qk_rope_head_dim=widths.rope,
        v_head_dim=widths.value,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        rope_scaling={
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 512,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )


def _sparse_config(widths: Widths, indexer: Indexer) -> dict[str, Any]:
    """As DeepSeek-V3.2's."""
    return _config(widths) | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "max_position_embeddings": 8192,  # contexts of which an indexer leaves something out
        "index_n_heads": indexer.heads,
        "index_head_dim": indexer.head_dim,
        "index_topk": indexer.topk,
        "index_share_for_mtp_iteration": indexer.shares_for_mtp,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to write the model's folder into")
    print(make_tiny_mtp(parser.parse_args().dest))  # noqa: T201  # a command-line program


if __name__ == "__main__":
    main()
