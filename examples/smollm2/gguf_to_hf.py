"""Converts a Llama-architecture GGUF to a Hugging Face folder: bfloat16 safetensors and tokenizer.

Everything comes from the GGUF itself: weights, hyperparameters, vocabulary, merges, chat template.
Two things differ between the formats besides names: llama.cpp stores the rows of the query and key
projections with rotary halves interleaved, and its tokenizer is a flat list of tokens.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

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
CONTROL_TOKEN = 3  # llama.cpp's token type of <|im_start|> and its like
SPECIAL_IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


class Metadata:
    """The GGUF's key-value header."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()


def convert(gguf: Path, folder: Path) -> int:
    """Writes the model into `folder` and returns the number of its tensors."""
    reader = GGUFReader(str(gguf))
    header = Metadata(reader)
    tensors = _convert_tensors(reader, header)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = _model_config(header, is_tied="lm_head.weight" not in tensors)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", _special_ids(header, "bos", "eos", "pad"))
    _write(folder / "tokenizer.json", _tokenizer(header))
    _write(folder / "tokenizer_config.json", _tokenizer_config(header))
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


def _convert_tensors(reader: GGUFReader, header: Metadata) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": header["llama.attention.head_count"],
        "attn_k": header["llama.attention.head_count_kv"],
    }
    converted = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = split_rotary_halves(weight, heads[part])
        contiguous = torch.from_numpy(np.ascontiguousarray(weight))
        converted[hf_name(tensor.name)] = contiguous.to(torch.bfloat16)
    return converted


def _special_ids(header: Metadata, *names: str) -> dict[str, int]:
    return {f"{n}_token_id": header[f"tokenizer.ggml.{SPECIAL_IDS[n]}_token_id"] for n in names}


def _model_config(header: Metadata, *, is_tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": header["llama.vocab_size"],
        "hidden_size": header["llama.embedding_length"],
        "intermediate_size": header["llama.feed_forward_length"],
        "num_hidden_layers": header["llama.block_count"],
        "num_attention_heads": header["llama.attention.head_count"],
        "num_key_value_heads": header["llama.attention.head_count_kv"],
        "head_dim": header["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": header["llama.context_length"],
        # The header holds the same number as a float32; HF configs spell it short.
        "rms_norm_eps": float(f"{header['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": header["llama.rope.freq_base"],
        "rope_scaling": None,
        "tie_word_embeddings": is_tied,
        "attention_bias": False,
        "mlp_bias": False,
        **_special_ids(header, "bos", "eos", "pad"),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def _tokenizer(header: Metadata) -> dict[str, Any]:
    tokens = header["tokenizer.ggml.tokens"]
    types = header["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    control = [
        {"id": token_id, "content": token, **flags, "special": True}
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if int(kind) == CONTROL_TOKEN
    ]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    split = [
        {"type": "Digits", "individual_digits": True},
        {**byte_level, "add_prefix_space": False},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": control,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in header["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(header: Metadata) -> dict[str, Any]:
    tokens = header["tokenizer.ggml.tokens"]
    ids = _special_ids(header, *SPECIAL_IDS)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": tokens[ids[f"{name}_token_id"]] for name in SPECIAL_IDS},
        "model_max_length": header["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": header["tokenizer.chat_template"],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
