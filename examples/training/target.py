"""The frozen target: it writes the training text and supplies features and teacher logits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.training.head import HeadConfig


@dataclass(frozen=True, slots=True)
class Features:
    """What the target knows at each position of a text."""

    embeddings: Tensor  # [bs, length, hidden]
    last_hidden: Tensor  # [bs, length, hidden], after the final norm
    captured: Tensor  # [bs, length, 3 * hidden], inputs of three layers


class Target:
    """A frozen Hugging Face model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, device: str) -> None:
        self.device = device
        self.tokenizer = tokenizer
        self.model = model.to(device).eval().requires_grad_(False)
        num_layers = self.model.config.num_hidden_layers
        # What sglang 0.5.21 takes by default (models/llama.py, models/qwen2.py:
        # set_eagle3_layers_to_capture).
        self.capture_layers = (2, num_layers // 2, num_layers - 3)

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> "Target":
        """Loads a model folder, on a GPU if there is one: bfloat16 there, float32 elsewhere."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        return cls(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), tokenizer, device)

    @torch.no_grad()
    def features(self, tokens: Tensor) -> Features:
        """Runs the target once over tokens [bs, length]."""
        output = self.model.model(input_ids=tokens, output_hidden_states=True)
        captured = torch.cat([output.hidden_states[layer] for layer in self.capture_layers], -1)
        embeddings = self.model.model.embed_tokens(tokens)
        return Features(embeddings, output.last_hidden_state, captured)

    def output_rows(self, token_ids: Tensor) -> Tensor:
        """Returns the output matrix's rows of the given tokens."""
        rows: Tensor = self.model.lm_head.weight.data[token_ids]
        return rows

    def head_config(
        self, draft_vocab_size: int, intermediate_size: int | None = None
    ) -> HeadConfig:
        """Returns the sizes of a head for this target; by default as wide in the middle."""
        config = self.model.config
        theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
        return HeadConfig(
            vocab_size=config.vocab_size,
            draft_vocab_size=draft_vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=intermediate_size or config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=theta,
            max_position_embeddings=config.max_position_embeddings,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
        )
