"""The head's training pass against an independent reading of what drafting does."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from examples.training.data import Batch
from examples.training.head import Eagle3Head, rotate
from examples.training.target import Target
from examples.training.unroll import DraftVocabulary, loss_of, unroll

VOCAB, LENGTH, NUM_STEPS = 300, 24, 4
NUM_POSITIONS = LENGTH - 1 - NUM_STEPS


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_theta=10_000.0,
        initializer_range=0.2,
    )
    return Target(LlamaForCausalLM(config), SimpleNamespace(pad_token_id=0), "cpu")


@pytest.fixture(scope="module")
def head(target: Target) -> Eagle3Head:
    torch.manual_seed(1)
    head = Eagle3Head(target.head_config(draft_vocab_size=64))
    for parameter in head.parameters():
        parameter.data += torch.randn_like(parameter) * 0.05
    return head


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(3, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def batched_logits(target: Target, head: Eagle3Head, tokens: Tensor) -> list[Tensor]:
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return [step.logits for step in unroll(head, target.features(tokens), batch, NUM_STEPS)]


def test_no_draft_sees_a_token_it_has_to_predict(
    target: Target, head: Eagle3Head, tokens: Tensor
) -> None:
    base = batched_logits(target, head, tokens)
    for changed in range(1, LENGTH):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 77) % VOCAB
        for step, logits in enumerate(batched_logits(target, head, other)):
            # Position t at this step knows tokens up to t + 1 + step.
            first_affected = max(0, changed - 1 - step)
            change = (logits - base[step]).abs().amax((0, 2))
            if first_affected > 0:
                assert change[:first_affected].max() < 1e-4
            if step + 1 <= changed < step + 1 + NUM_POSITIONS:
                assert change[first_affected] > 1e-3


@pytest.mark.parametrize("position", [0, 3, 9, NUM_POSITIONS - 1])
def test_unrolled_drafting_equals_drafting_one_token_at_a_time(
    target: Target, head: Eagle3Head, tokens: Tensor, position: int
) -> None:
    base = batched_logits(target, head, tokens)
    one = tokens[:1]
    with torch.no_grad():
        features = target.features(one)
        drafter = SequentialDrafter(head)
        prefix = head.project(features.captured[:, : position + 1])
        hidden, logits = drafter.forward(features.embeddings[:, 1 : position + 2], prefix)
        hidden = hidden[:, -1:]
        for step in range(NUM_STEPS):
            if step:
                following = position + 1 + step
                embedding = features.embeddings[:, following : following + 1]
                hidden, logits = drafter.forward(embedding, hidden)
            torch.testing.assert_close(logits[0, -1], base[step][0, position], atol=2e-4, rtol=0)


class SequentialDrafter:
    """Drafts as a server does: one growing KV cache, fused attention, one token at a time."""

    def __init__(self, head: Eagle3Head) -> None:
        self.head = head
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def forward(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer, config = self.head.midlayer, self.head.config
        attention = layer.self_attn
        x = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)
        start = 0 if self.keys is None else self.keys.shape[2]
        positions = torch.arange(start, start + x.shape[1])

        def heads(projection: torch.nn.Linear) -> Tensor:
            return projection(x).view(1, x.shape[1], -1, config.head_dim).transpose(1, 2)

        query = rotate(heads(attention.q_proj), positions, config.rope_theta)
        keys = rotate(heads(attention.k_proj), positions, config.rope_theta)
        values = heads(attention.v_proj)
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        mask = torch.arange(start + x.shape[1])[None] <= positions[:, None]
        mixed = F.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        hidden = hidden + attention.o_proj(mixed.transpose(1, 2).reshape(1, x.shape[1], -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden, self.head.lm_head(self.head.norm(hidden))


def test_rotation_turns_pairs_and_keeps_their_length() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    turned = rotate(x, torch.tensor([1]), theta=10_000.0).flatten()
    angle = torch.tensor(1.0)
    torch.testing.assert_close(
        turned, torch.stack([angle.cos(), x.sum() * 0, angle.sin(), x.sum() * 0])
    )


def test_only_generated_tokens_of_the_draft_vocabulary_count(
    target: Target, head: Eagle3Head, tokens: Tensor
) -> None:
    token_ids = torch.arange(64)
    vocabulary = DraftVocabulary.build(token_ids, VOCAB, target.output_rows(token_ids))
    features = target.features(tokens)

    def loss(is_generated: Tensor) -> float:
        with torch.no_grad():
            steps = unroll(head, features, Batch(tokens, is_generated), NUM_STEPS)
            return loss_of(steps, vocabulary).item()

    nowhere = torch.zeros_like(tokens, dtype=torch.bool)
    assert loss(nowhere) == 0
    assert loss((tokens >= 64) & ~nowhere) == 0
    assert loss(~nowhere) > 0
    assert loss(~nowhere) == pytest.approx(loss(tokens < 64), rel=1e-6)
