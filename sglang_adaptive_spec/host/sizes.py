"""What launch and start-up both reckon with: stages, backends, heads, the memory of plans."""

from typing import Any, NamedTuple, Protocol

import torch
from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.environ import envs
from sglang.srt.utils.hf_transformers_utils import get_config

from sglang_adaptive_spec.host.server_args import ServerArgs
from sglang_adaptive_spec.tiers import CATCH_UP_ROUNDS, PLAIN_TIER, Tier

ATTENTION_FLAGS = (
    "attention_backend",
    "decode_attention_backend",
    "prefill_attention_backend",
    "speculative_draft_attention_backend",
)
# A choice: the host's largest decode graph on one GPU of 60 to 160 GB.
GRAPH_REQUESTS = 256
PACKED_ROWS = 128  # of the largest tile of FlashInfer's plan; smaller ones take less
DECODE_ROWS = 16  # of a decode's tile, where no more query heads share a KV head
# A choice: the catch-ups of 512 requests of Llama 3.1 8B, or of 256 with twice the heads, take
# 1.6 GB; the host never has more than 0.5 GB where tiers are switched.
MOST_WORKSPACE_BYTES = 2**31


class Stages(NamedTuple):
    """Which forwards of a tier have graphs, and what they read, by what drafts."""

    has_draft: bool  # a model: a forward a step, and a draft-extend
    has_trees: bool  # whatever the topk of the tiers

    def num_forwards(self, tier: Tier) -> int:
        """Returns the forwards that are captured for ``tier`` at each batch size."""
        return tier.num_steps + 2 if self.has_draft else 1

    def num_draft_rows(self, tier: Tier) -> int:
        """Returns the indices of a request that draft steps have of their own."""
        return tier.num_steps * tier.topk if self.has_draft else 0

    def extend_width(self, tier: Tier) -> int:
        """Returns the tokens of a request in the widest forward of ``tier``."""
        is_catch_up = self.has_draft and tier == PLAIN_TIER
        return CATCH_UP_ROUNDS if is_catch_up else tier.num_draft_tokens


OF_A_DRAFT, OF_A_TABLE = Stages(True, has_trees=False), Stages(False, has_trees=True)
STAGES = {"EAGLE": OF_A_DRAFT, "EAGLE3": OF_A_DRAFT, "STANDALONE": OF_A_DRAFT, "NGRAM": OF_A_TABLE}


class ModelConfig(Protocol):
    """A model's shape."""

    context_len: int
    vocab_size: int
    dtype: torch.dtype
    quantization: str | None
    is_encoder_decoder: bool
    num_attention_heads: int
    head_dim: int
    hf_config: Any
    is_hybrid_swa: bool
    model_is_mrope: bool

    def get_num_kv_heads(self, tensor_parallel_size: int) -> int:
        """Returns those of a rank."""


def attention_backends(view: ServerArgs) -> set[str]:
    """Returns every attention backend that resolved arguments name."""
    return {name for flag in ATTENTION_FLAGS if (name := getattr(view, flag))}


def target_config(server_args: ServerArgs) -> Any:
    """Returns the target's Hugging Face config."""
    path, revision = server_args.model_path, server_args.revision
    return get_config(path, trust_remote_code=server_args.trust_remote_code, revision=revision)


def draft_config(server_args: ServerArgs) -> Any:
    """Returns the draft's Hugging Face config; the target's own when the draft is inside it."""
    path = server_args.speculative_draft_model_path
    if path is None:
        return target_config(server_args)
    revision = server_args.speculative_draft_model_revision
    return get_config(path, trust_remote_code=server_args.trust_remote_code, revision=revision)


def heads(server_args: ServerArgs, tp_size: int) -> list[tuple[int, int, int]]:
    """Returns query heads and KV heads of a rank and their width, of the target and the draft."""
    target, draft = model_config_of(server_args), draft_config(server_args)
    draft_heads = draft.num_attention_heads
    draft_kv_heads = getattr(draft, "num_key_value_heads", None) or draft_heads
    draft_dim = getattr(draft, "head_dim", None) or draft.hidden_size // draft_heads
    return [
        plan_heads(target, tp_size),
        (draft_heads // tp_size, max(1, draft_kv_heads // tp_size), draft_dim),
    ]


def plan_heads(model_config: ModelConfig, tp_size: int) -> tuple[int, int, int]:
    """Returns a rank's query heads and KV heads and their width, as `plan_bytes` takes them."""
    num_kv_heads = model_config.get_num_kv_heads(tp_size)
    return model_config.num_attention_heads // tp_size, num_kv_heads, model_config.head_dim


def plan_bytes(
    batch_size: int, width: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> int:
    """Returns what a plan for a CUDA graph may take of FlashInfer's workspace.

    It keeps partial results of tiles of packed rows in fp32 (flashinfer 0.6
    attention/scheduler.cuh:PrefillPlan).

    Args:
        batch_size: Requests in the graph.
        width: Tokens per request.
        num_heads: Query heads of this rank.
        num_kv_heads: KV heads of this rank.
        head_dim: Of both.
    """
    packed = width * max(1, num_heads // num_kv_heads)
    tile_rows = DECODE_ROWS if width == 1 and packed <= DECODE_ROWS else PACKED_ROWS
    num_tiles = -(-batch_size * packed // tile_rows) + batch_size - 1
    return 4 * num_heads * num_tiles * tile_rows * (head_dim + 1)


def largest_workspace_bytes() -> int:
    """Returns the bytes that plans may take: what the user set, else what we provide."""
    size = envs.SGLANG_FLASHINFER_WORKSPACE_SIZE
    return int(size.get()) if size.is_set() else MOST_WORKSPACE_BYTES
