"""Tiny seeded models for end-to-end tests: a Llama target and its drafts.

    python tools/tiny_models.py DEST        writes DEST/{target,eagle,eagle3,...}, about 6 MB

The idea: the target mostly continues a fixed cycle of tokens (its head points from the embedding
of a token to the token's successor), and attention to the context pushes it off the cycle now and
then. The drafts, EAGLE, EAGLE-3 and a whole model (`standalone`), know the cycle and little of the
context. So greedy text does not repeat itself, depends on every KV slot, and drafts are right
often, but not always and not regularly.

Beside them: `target-2`, other weights in the target's shapes; `hot-tokens.pt`, a token map for the
EAGLE draft; and `perfect-target` with `perfect-eagle`, where every draft holds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # this tool makes weights
from safetensors.torch import save_file
from torch import Generator, Tensor  # noqa: TID253

HIDDEN, INTERMEDIATE, LAYERS = 128, 256, 4
# Half as many heads of 64 where a GPU's attention has no kernels for 32.
HEAD_DIM = int(os.environ.get("TINY_HEAD_DIM", "32"))
HEADS, KV_HEADS = HIDDEN // HEAD_DIM, HIDDEN // HEAD_DIM // 2
VOCAB, BOS, EOS = 512, 256, 257
THINK_END = 420  # what the target says now and then
# The EAGLE-3 draft knows only these many tokens; the cycle runs through them.
DRAFT_VOCAB = 384

NAMES = (
    *("target", "eagle", "eagle3", "standalone", "thinking", "target-2"),
    *("perfect-target", "perfect-eagle"),
)
NUM_HOT = 320  # tokens that the token map leaves the EAGLE draft

TARGET_SEED, EAGLE_SEED, EAGLE3_SEED, SECOND_SEED, PERFECT_SEED = 7, 11, 13, 17, 19
STANDALONE_SEED, STANDALONE_LAYERS = 23, 2
# Found by trial: greedy text stays varied and about 0.6 of it follows the cycle, as
# tests/cpu_host/test_served.py holds them to with the real server.
TARGET_QK_STD, TARGET_VO_STD, TARGET_MLP_STD = 0.3, 0.12, 0.05
HEAD_NOISE = 0.25
DRAFT_STD = 0.03

Weights = dict[str, Tensor]


def make_tiny_models(dest: str | Path) -> dict[str, Path]:
    """Writes the models under dest and returns their folders by name."""
    dest = Path(dest)
    embedding, head, cycle = write_target(dest / "target", TARGET_SEED)
    eagle = _eagle(embedding, torch.Generator().manual_seed(EAGLE_SEED))
    write_eagle(dest / "eagle", eagle)
    write_eagle3(dest / "eagle3", head, cycle)
    write_standalone(dest / "standalone", embedding, head)
    before = [f"<x{number}>" for number in range(EOS + 1, THINK_END)]
    write_tokenizer(dest / "thinking", [*before, "</think>"])  # for reasoning, without a model
    write_target(dest / "target-2", SECOND_SEED)
    torch.save(cycle[:NUM_HOT].tolist(), dest / "hot-tokens.pt")
    write_perfect_pair(dest / "perfect-target", dest / "perfect-eagle")
    return {name: dest / name for name in NAMES}


def write_target(folder: Path, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Writes a target and returns its embedding, its head and its cycle."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    cycle = random_cycle(generator)
    head = random_head(embedding, cycle, generator)
    write_model(folder, base_config(), _target(embedding, head, generator))
    return embedding, head, cycle


def write_eagle(folder: Path, weights: Weights) -> None:
    """Writes an EAGLE draft."""
    config = base_config(architectures=["LlamaForCausalLMEagle"], num_hidden_layers=1)
    write_model(folder, config, weights)


def write_standalone(folder: Path, embedding: Tensor, head: Tensor) -> None:
    """Writes a whole model with the target's embedding and head, of other layers and KV heads."""
    generator = torch.Generator().manual_seed(STANDALONE_SEED)
    shape = {"num_hidden_layers": STANDALONE_LAYERS, "num_key_value_heads": 1}
    weights = _whole_model(embedding, head)
    for layer in range(STANDALONE_LAYERS):
        weights |= _layer(f"model.layers.{layer}", generator, kv_heads=1)
    write_model(folder, base_config(**shape), weights)


def write_perfect_pair(target_folder: Path, eagle_folder: Path) -> None:
    """Writes a target that never leaves its cycle, and an EAGLE draft that knows it.

    The layers of both add nothing, so each token follows from the one before. EOS is on the cycle.
    """
    generator = torch.Generator().manual_seed(PERFECT_SEED)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    cycle = torch.randperm(VOCAB, generator=generator)
    head = torch.empty_like(embedding)
    head[cycle.roll(-1)] = embedding[cycle]
    target, eagle = _target(embedding, head, generator), _eagle(embedding, generator)
    eagle["fc.weight"] = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    for weights in (target, eagle):
        for name in weights:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights[name] = torch.zeros_like(weights[name])
    write_model(target_folder, base_config(), target)
    write_eagle(eagle_folder, eagle)


def write_eagle3(folder: Path, head: Tensor, cycle: Tensor, **changes: Any) -> Path:
    """Writes an EAGLE-3 draft for a target with this head and cycle."""
    config = base_config(
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        num_key_value_heads=HEADS,
        draft_vocab_size=DRAFT_VOCAB,
        eagle_config={
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
        **changes,
    )
    known = cycle.sort().values
    write_model(folder, config, _eagle3(head, known, torch.Generator().manual_seed(EAGLE3_SEED)))
    return folder


def random_cycle(generator: Generator) -> Tensor:
    """The tokens of the cycle in their order."""
    tokens = torch.randperm(VOCAB, generator=generator)
    return tokens[(tokens != BOS) & (tokens != EOS)][:DRAFT_VOCAB]


def random_head(embedding: Tensor, cycle: Tensor, generator: Generator) -> Tensor:
    """Rows that make each token of the cycle the likely one after its predecessor."""
    head = 0.5 * torch.randn(VOCAB, HIDDEN, generator=generator)
    head[cycle.roll(-1)] = embedding[cycle]
    return head + HEAD_NOISE * torch.randn(VOCAB, HIDDEN, generator=generator)


def _whole_model(embedding: Tensor, head: Tensor) -> Weights:
    """What a Llama has around its layers."""
    return {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }


def _target(embedding: Tensor, head: Tensor, generator: Generator) -> Weights:
    weights = _whole_model(embedding, head)
    for layer in range(LAYERS):
        weights |= _layer(
            f"model.layers.{layer}",
            generator,
            kv_heads=KV_HEADS,
            qk_std=TARGET_QK_STD,
            vo_std=TARGET_VO_STD,
            mlp_std=TARGET_MLP_STD,
        )
    return weights


def _eagle(embedding: Tensor, generator: Generator) -> Weights:
    """EAGLE: fc over [embedding; target hidden] passes the embedding on, one weak layer."""
    weights = {
        "fc.weight": torch.cat(
            [
                torch.eye(HIDDEN) + 0.16 * torch.randn(HIDDEN, HIDDEN, generator=generator),
                0.02 * torch.randn(HIDDEN, HIDDEN, generator=generator),
            ],
            dim=1,
        ),
        "fc.bias": torch.zeros(HIDDEN),
        "embed_tokens.weight": embedding,
    }
    weights |= _layer("layers.0", generator, kv_heads=KV_HEADS)
    del weights["layers.0.input_layernorm.weight"]  # The host's EAGLE layer has none.
    return weights


def _eagle3(head: Tensor, known: Tensor, generator: Generator) -> Weights:
    """EAGLE-3: three hidden states through fc, one layer over [embedding; hidden], own head."""
    ids = torch.arange(DRAFT_VOCAB)
    weights = {
        "fc.weight": 0.01 * torch.randn(HIDDEN, 3 * HIDDEN, generator=generator),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head[known],
        "d2t": known - ids,
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, known, True),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
    }
    weights |= _layer("midlayer", generator, kv_heads=HEADS, in_dim=2 * HIDDEN)
    # Only attention sees the embedding: q = k looks sharply at the token itself, v and o pass
    # its embedding on to the residual stream.
    eye, zero = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    attention = "midlayer.self_attn"
    weights[f"{attention}.q_proj.weight"] = torch.cat([2 * eye, zero], dim=1)
    weights[f"{attention}.k_proj.weight"] = torch.cat([2 * eye, zero], dim=1)
    weights[f"{attention}.v_proj.weight"] = torch.cat([eye, zero], dim=1)
    weights[f"{attention}.o_proj.weight"] = eye + 0.1 * torch.randn(
        HIDDEN, HIDDEN, generator=generator
    )
    return weights


def _layer(
    prefix: str,
    generator: Generator,
    *,
    kv_heads: int,
    in_dim: int = HIDDEN,
    qk_std: float = DRAFT_STD,
    vo_std: float = DRAFT_STD,
    mlp_std: float = DRAFT_STD,
) -> Weights:
    """One random Llama layer."""

    def normal(std: float, rows: int, columns: int) -> Tensor:
        return std * torch.randn(rows, columns, generator=generator)

    q_dim, kv_dim = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    return {
        f"{prefix}.self_attn.q_proj.weight": normal(qk_std, q_dim, in_dim),
        f"{prefix}.self_attn.k_proj.weight": normal(qk_std, kv_dim, in_dim),
        f"{prefix}.self_attn.v_proj.weight": normal(vo_std, kv_dim, in_dim),
        f"{prefix}.self_attn.o_proj.weight": normal(vo_std, HIDDEN, q_dim),
        f"{prefix}.mlp.gate_proj.weight": normal(mlp_std, INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": normal(mlp_std, INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": normal(mlp_std, HIDDEN, INTERMEDIATE),
        f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def base_config(**changes: Any) -> dict[str, Any]:
    """Returns the target's config with ``changes``; None takes a key out."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "attention_bias": False,
        "mlp_bias": False,
        **changes,
    }
    return {name: value for name, value in config.items() if value is not None}


def write_model(
    folder: Path, config: Mapping[str, Any], weights: Weights, special_tokens: Sequence[str] = ()
) -> None:
    """Writes weights in bfloat16, config and tokenizer; special tokens come after EOS."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})
    stored = {
        name: (weight.to(torch.bfloat16) if weight.is_floating_point() else weight).contiguous()
        for name, weight in weights.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, special_tokens)


def write_tokenizer(folder: Path, special_tokens: Sequence[str]) -> None:
    """Byte level: one token a byte, then the two specials, then `<x258>` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    from tokenizers import (  # type: ignore[import-untyped]  # has no stubs
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
    )

    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {"<s>": BOS, "</s>": EOS}
    names = {EOS + 1 + number: name for number, name in enumerate(special_tokens)}
    vocab |= {names.get(i, f"<x{i}>"): i for i in range(EOS + 1, VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<s>", "</s>", *special_tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to write the models into")
    for name, folder in make_tiny_models(parser.parse_args().dest).items():
        print(f"{name}: {folder}")  # noqa: T201  # a command-line program


if __name__ == "__main__":
    main()
