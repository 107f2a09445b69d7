"""The EAGLE-3 draft head: one Llama layer over (token embedding, hidden state), as SGLang loads it.

Module names equal the names of SGLang's checkpoint (`midlayer.self_attn.q_proj`, ...), so the state
dict is the file. During training the head drafts `num_steps` tokens from every position of a text
at once: step 0 attends causally, and a later step adds one key of its own per position and step.

Source: EAGLE-3 (arXiv 2503.01840); weight layout: sglang `srt/models/llama_eagle3.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of the head: the target's, but for the draft vocabulary and perhaps the MLP."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    bos_token_id: int
    eos_token_id: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def to_json(self) -> dict[str, Any]:
        """Returns the head's config.json."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "torch_dtype": "bfloat16",
            "attention_bias": False,
            "draft_vocab_size": self.draft_vocab_size,
        }


@dataclass(slots=True)
class DraftCache:
    """Keys and values of the steps drafted so far, one pair per step.

    Each is [bs, num_attention_heads, num_positions, head_dim]; position t of entry j belongs to the
    j-th token drafted after text position t.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Steps drafted so far."""
        return len(self.keys)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)
        return normed.to(x.dtype)


class UnrolledAttention(nn.Module):
    """Grouped-query attention over the text and over each position's own earlier drafts."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        inputs, hidden = 2 * config.hidden_size, config.hidden_size
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(inputs, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, kv_size, bias=False)
        self.v_proj = nn.Linear(inputs, kv_size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cache: DraftCache) -> Tensor:
        """Attends for draft step `cache.num_steps` and appends that step to the cache."""
        bs, num_positions, _ = x.shape
        query = self._append(x, cache)
        scale = self.config.head_dim**-0.5
        causal = torch.full((num_positions, num_positions), float("-inf"), device=x.device).triu(1)
        scores = [(query @ cache.keys[0].transpose(-1, -2) * scale).float() + causal]
        for keys in cache.keys[1:]:
            scores.append(((query * keys).sum(-1, keepdim=True) * scale).float())
        weights = torch.cat(scores, -1).softmax(-1).to(x.dtype)
        mixed = weights[..., :num_positions] @ cache.values[0]
        for step, values in enumerate(cache.values[1:]):
            mixed = mixed + weights[..., num_positions + step, None] * values
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(bs, num_positions, -1))
        return projected

    def _append(self, x: Tensor, cache: DraftCache) -> Tensor:
        """Stores this step's keys and values; returns its queries [bs, heads, positions, dim]."""
        config = self.config
        group = config.num_attention_heads // config.num_key_value_heads
        # Draft step j of text position t stands at position t + j.
        positions = torch.arange(x.shape[1], device=x.device) + cache.num_steps
        keys = rotate(self._split(self.k_proj(x)), positions, config.rope_theta)
        cache.keys.append(keys.repeat_interleave(group, 1))
        cache.values.append(self._split(self.v_proj(x)).repeat_interleave(group, 1))
        return rotate(self._split(self.q_proj(x)), positions, config.rope_theta)

    def _split(self, x: Tensor) -> Tensor:
        bs, num_positions, _ = x.shape
        return x.view(bs, num_positions, -1, self.config.head_dim).transpose(1, 2)


class GatedMLP(nn.Module):
    """Llama's SiLU-gated feed-forward."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the block without its residual."""
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class DraftLayer(nn.Module):
    """The head's only transformer layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = UnrolledAttention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def forward(self, embeddings: Tensor, hidden: Tensor, cache: DraftCache) -> Tensor:
        """Mixes the next token's embedding with the hidden state before it."""
        both = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, cache)
        mixed: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return mixed


class Eagle3Head(nn.Module):
    """Drafts over a reduced ("hot") vocabulary from three of the target's hidden states."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.fc = nn.Linear(3 * size, size, bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and name != "lm_head.weight":
                nn.init.normal_(parameter, std=INIT_STD)

    def project(self, captured: Tensor) -> Tensor:
        """Reduces the captured target states [bs, positions, 3 * hidden] to one hidden state."""
        reduced: Tensor = self.fc(captured)
        return reduced

    def draft_step(
        self, embeddings: Tensor, hidden: Tensor, cache: DraftCache
    ) -> tuple[Tensor, Tensor]:
        """Returns this step's hidden states and logits over the draft vocabulary."""
        hidden = self.midlayer(embeddings, hidden, cache)
        return hidden, self.lm_head(self.norm(hidden))


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Applies rotary embedding to x [bs, heads, positions, head_dim]."""
    half = x.shape[-1] // 2
    exponents = torch.arange(0, x.shape[-1], 2, device=x.device).float() / x.shape[-1]
    angles = positions[:, None].float() * theta**-exponents
    cos = torch.cat([angles, angles], -1).cos().to(x.dtype)
    sin = torch.cat([angles, angles], -1).sin().to(x.dtype)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin
