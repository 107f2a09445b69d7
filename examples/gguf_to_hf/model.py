"""The weights and the configuration of a GGUF, and the folder as a whole."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from examples.gguf_to_hf.header import Header
from examples.gguf_to_hf.tokenizer import tokenizer_config, tokenizer_json

ROOT_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> int:
    """Writes the model into `folder` and returns the number of its tensors."""
    reader = GGUFReader(str(gguf))
    header = Header(reader)
    tensors = _convert_tensors(reader, header)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = _model_config(header, is_tied="lm_head.weight" not in tensors)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {**_token_ids(header), **_ends(header)})
    _write(folder / "tokenizer.json", tokenizer_json(header))
    _write(folder / "tokenizer_config.json", tokenizer_config(header))
    return len(tensors)


def hf_name(gguf_name: str) -> str:
    """Translates a tensor's name: `blk.3.ffn_up.weight` -> `model.layers.3.mlp.up_proj.weight`."""
    if gguf_name in ROOT_NAMES:
        return ROOT_NAMES[gguf_name]
    _, layer, part, suffix = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def split_rotary_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders each head's rows (a0 b0 a1 b1 ...) to (a0 a1 ... b0 b1 ...), as HF's RoPE wants."""
    half = weight.shape[0] // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _convert_tensors(reader: GGUFReader, header: Header) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": header.hyperparameter("attention.head_count"),
        "attn_k": header.hyperparameter("attention.head_count_kv"),
    }
    converted = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads and header.architecture.has_interleaved_halves:
            weight = split_rotary_halves(weight, heads[part])
        contiguous = torch.from_numpy(np.ascontiguousarray(weight))
        converted[hf_name(tensor.name)] = contiguous.to(torch.bfloat16)
    return converted


def _token_ids(header: Header) -> dict[str, int]:
    special = header.special_ids("bos", "eos", "pad")
    return {f"{name}_token_id": token_id for name, token_id in special.items()}


def _ends(header: Header) -> dict[str, list[int]]:
    more = header.architecture.end_of_text
    if more is None:
        return {}
    ids = _token_ids(header)["eos_token_id"], header["tokenizer.ggml.tokens"].index(more)
    return {"eos_token_id": [*ids]}


def _model_config(header: Header, *, is_tied: bool) -> dict[str, Any]:
    hidden_size = header.hyperparameter("embedding_length")
    num_heads = header.hyperparameter("attention.head_count")
    return {
        "architectures": [header.architecture.hf_class],
        "model_type": header.architecture_name,
        "vocab_size": len(header["tokenizer.ggml.tokens"]),
        "hidden_size": hidden_size,
        "intermediate_size": header.hyperparameter("feed_forward_length"),
        "num_hidden_layers": header.hyperparameter("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": header.hyperparameter("attention.head_count_kv"),
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": header.hyperparameter("context_length"),
        # The header holds the same number as a float32; HF configs spell it short.
        "rms_norm_eps": float(f"{header.hyperparameter('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": header.hyperparameter("rope.freq_base"),
        "tie_word_embeddings": is_tied,
        **header.architecture.config,
        **_token_ids(header),
        "torch_dtype": "bfloat16",
        # Without it transformers takes every large vocabulary for an old Mistral's, and warns.
        "transformers_version": transformers.__version__,
        "use_cache": True,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
