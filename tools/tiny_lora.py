"""Two tiny seeded LoRA adapters for the targets of tiny_models.py, of unlike ranks.

Each pushes the target off its cycle in a way of its own, as tests/e2e/test_lora.py asserts.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch  # noqa: TID253  # this tool makes weights
from safetensors.torch import save_file

from tools.tiny_families import EXPERT_DIM, EXPERTS
from tools.tiny_models import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS

RANKS = {"adapter-one": 4, "adapter-two": 8}
# [inputs, outputs] of what is adapted, by the name within a layer.
ATTENTION = {
    "self_attn.q_proj": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.k_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
    "self_attn.v_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
    "self_attn.o_proj": (HEADS * HEAD_DIM, HIDDEN),
}
SEED = 23
STD = 0.12  # by trial: texts differ from the base model's within a few tokens, and drafts hold


def shapes(has_experts: bool) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the attention's and of the dense or the expert layers' projections."""
    layers = [f"mlp.experts.{expert}" for expert in range(EXPERTS)] if has_experts else ["mlp"]
    width = EXPERT_DIM if has_experts else INTERMEDIATE
    found = dict(ATTENTION)
    for layer in layers:
        found |= {f"{layer}.{name}_proj": (HIDDEN, width) for name in ("gate", "up")}
        found[f"{layer}.down_proj"] = (width, HIDDEN)
    return found


def make_tiny_lora(dest: str | Path, has_experts: bool = False) -> dict[str, Path]:
    """Writes the adapters under dest and returns their folders by name."""
    adapted = shapes(has_experts)
    generator = torch.Generator().manual_seed(SEED)
    folders = {}
    for name, rank in RANKS.items():
        folder = folders[name] = Path(dest) / name
        folder.mkdir(parents=True)
        weights = {}
        for layer in range(LAYERS):
            for place, (inputs, outputs) in adapted.items():
                prefix = f"base_model.model.model.layers.{layer}.{place}"
                weights |= {
                    f"{prefix}.lora_A.weight": STD * torch.randn(rank, inputs, generator=generator),
                    f"{prefix}.lora_B.weight": STD
                    * torch.randn(outputs, rank, generator=generator),
                }
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "target",
            "bias": "none",
            "r": rank,
            "lora_alpha": 2 * rank,
            "lora_dropout": 0.0,
            "target_modules": sorted({place.rpartition(".")[2] for place in adapted}),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
        save_file(weights, folder / "adapter_model.safetensors")
    return folders


def lora_arguments(folders: dict[str, Path]) -> tuple[str, ...]:
    """Returns the arguments that load the adapters under their names, all of them at once."""
    paths = (f"{name}={folder}" for name, folder in folders.items())
    return ("--max-loras-per-batch", str(len(folders) + 1), "--lora-paths", *paths)
