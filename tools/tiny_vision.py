"""The image part of the tiny Qwen-VL targets: configs, random weights, the processor's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # this tool makes weights
from torch import Generator  # noqa: TID253

from tools.tiny_models import EOS, HIDDEN, Weights

SPECIAL_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VISION_START, VISION_END, IMAGE, VIDEO = range(EOS + 1, EOS + 1 + len(SPECIAL_TOKENS))
TOKEN_IDS = {
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
}
_COMMON = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN2_5_VISION = {
    **_COMMON,
    "model_type": "qwen2_5_vl",
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
QWEN3_VISION = {
    **_COMMON,
    "model_type": "qwen3_vl",
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}


def vision_weights(config: Mapping[str, Any], generator: Generator) -> Weights:
    """Returns random weights of an image tower, under the names that transformers gives them."""
    if config["model_type"] == "qwen3_vl":
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

        tower = Qwen3VLVisionModel(Qwen3VLVisionConfig(**config))
    else:
        from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
            Qwen2_5_VisionTransformerPretrainedModel,
        )

        tower = Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**config))
    weights = {}
    for name, weight in tower.state_dict().items():
        if weight.dim() > 1:
            std = weight[0].numel() ** -0.5
            weights[f"visual.{name}"] = std * torch.randn(weight.shape, generator=generator)
        else:
            is_scale = name.endswith("weight")  # of a norm
            weights[f"visual.{name}"] = torch.full(weight.shape, float(is_scale))
    return weights


def write_processor(folder: Path, vision: Mapping[str, Any]) -> None:
    """Writes what turns an image into patches."""
    is_qwen3 = vision["model_type"] == "qwen3_vl"
    config = {
        "processor_class": "Qwen3VLProcessor" if is_qwen3 else "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "size": {"shortest_edge": 3136, "longest_edge": 100352},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config, indent=1) + "\n")
    kind = "Qwen3VLVideoProcessor" if is_qwen3 else "Qwen2VLVideoProcessor"
    video = {**config, "video_processor_type": kind}
    del video["image_processor_type"]
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=1) + "\n")
