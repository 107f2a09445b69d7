"""Training text: the target answers prompts itself, greedily and sampled by turns."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from examples.training.data import Prompt, Sample
from examples.training.target import Target

MAX_PROMPT_TOKENS = 320
MIN_GENERATED_TOKENS = 8
MIN_HELD_OUT = 8


class Sampling(NamedTuple):
    """How the next token is drawn; 0 degrees: the likeliest."""

    temperature: float = 0.0
    top_p: float = 1.0


class Writer(Protocol):
    """The target, in whatever runs it."""

    tokenizer: Any

    def write(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, sampling: Sampling
    ) -> list[list[int]]:
        """Returns the tokens of an answer to each prompt, perhaps more after their end."""


class TargetWriter:
    """The target in transformers: any machine, slow."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.tokenizer = target.tokenizer

    @torch.no_grad()
    def write(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, sampling: Sampling
    ) -> list[list[int]]:
        """Answers all prompts at once."""
        padded = self.tokenizer.pad({"input_ids": [*prompts]}, return_tensors="pt")
        padded = padded.to(self._target.device)
        drawn = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if sampling.temperature:
            drawn = {"do_sample": True, **sampling._asdict(), "top_k": 0}
        output = self._target.model.generate(
            **padded,
            max_new_tokens=new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
            **drawn,
        )
        answers: list[list[int]] = output[:, padded.input_ids.shape[1] :].tolist()
        return answers


def generate_samples(
    writer: Writer,
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    new_tokens: int,
    sampling: Sampling,
    limit_s: float,
) -> list[Sample]:
    """Has held-out, then training prompts answered, until `limit_s` has passed.

    Batches alternate between greedy and sampled text. Held-out text is always greedy: acceptance
    measured on it is then that of temperature 0.
    """
    held_out = [p for p in prompts if p.split == "heldout"][: max(MIN_HELD_OUT, batch_size)]
    order = held_out + [p for p in prompts if p.split == "train"]
    samples: list[Sample] = []
    start = time.monotonic()
    for batch_idx, first in enumerate(range(0, len(order), batch_size)):
        if time.monotonic() - start > limit_s:
            break
        batch = order[first : first + batch_size]
        is_greedy = batch[0].split == "heldout" or batch_idx % 2 == 0
        ids = [_encode(writer.tokenizer, prompt) for prompt in batch]
        answers = writer.write(ids, new_tokens, Sampling() if is_greedy else sampling)
        samples += _kept(batch, ids, answers, writer.tokenizer.eos_token_id)
        num_tokens = sum(len(sample.ids) - sample.prompt_len for sample in samples)
        print(f"generated {len(samples)} samples, {num_tokens} tokens", flush=True)
    return samples


def _kept(
    prompts: Sequence[Prompt],
    ids: Sequence[list[int]],
    answers: Sequence[list[int]],
    eos_token_id: int,
) -> list[Sample]:
    """Returns samples of the answers that are long enough, each cut behind its end."""
    samples = []
    for prompt, own, answer in zip(prompts, ids, answers, strict=True):
        if eos_token_id in answer:
            answer = answer[: answer.index(eos_token_id) + 1]
        if len(answer) >= MIN_GENERATED_TOKENS:
            samples.append(Sample(own + answer, len(own), prompt.domain, prompt.split))
    return samples


def _encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    text = prompt.text
    if prompt.chat:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids[:MAX_PROMPT_TOKENS]
    return ids
