"""Training text: the target answers prompts itself, greedily and sampled by turns."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from examples.training.data import Prompt, Sample
from examples.training.target import Target

MAX_PROMPT_TOKENS = 320  # a longer turn is left out
MIN_GENERATED_TOKENS = 8
MIN_HELD_OUT = 8

_Asked = tuple[Prompt, list[int]]  # a prompt and its tokens


class Sampling(NamedTuple):
    """How the next token is drawn; at temperature 0 greedily."""

    temperature: float = 0.0
    top_p: float = 1.0


GREEDY = Sampling()


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
    held_out: Sampling = GREEDY,
    passes: int = 1,
) -> list[Sample]:
    """Has held-out, then training prompts answered, until `limit_s` has passed.

    Batches for training alternate between greedy and sampled text; in a second pass each is of the
    other kind. Held-out text is of one kind, so that acceptance measured on it is that of its
    temperature.
    """
    tokenizer = writer.tokenizer
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    encoded = [(prompt, _encode(tokenizer, prompt)) for prompt in prompts]
    fitting = [(prompt, ids) for prompt, ids in encoded if len(ids) <= MAX_PROMPT_TOKENS]
    held = [each for each in fitting if each[0].split == "heldout"]
    train = [each for each in fitting if each[0].split == "train"]
    most = max(MIN_HELD_OUT, batch_size)
    asked = [(batch, held_out) for batch in _cut(held[:most], most)]
    batches, kinds = _cut(train, batch_size), (GREEDY, sampling)
    for number in range(passes):
        asked += [(batch, kinds[(idx + number) % 2]) for idx, batch in enumerate(batches)]
    samples: list[Sample] = []
    start = time.monotonic()
    for batch, drawn in asked:
        if time.monotonic() - start > limit_s:
            break
        answers = writer.write([ids for _, ids in batch], new_tokens, drawn)
        samples += _kept(batch, answers, ends)
        num_tokens = sum(len(sample.ids) - sample.prompt_len for sample in samples)
        print(f"generated {len(samples)} samples, {num_tokens} tokens", flush=True)
    return samples


def _cut(prompts: Sequence[_Asked], size: int) -> list[Sequence[_Asked]]:
    return [prompts[first : first + size] for first in range(0, len(prompts), size)]


def _kept(asked: Sequence[_Asked], answers: Sequence[list[int]], ends: set[int]) -> list[Sample]:
    """Returns samples of the answers that are long enough, each cut behind its end."""
    samples = []
    for (prompt, ids), answer in zip(asked, answers, strict=True):
        end = next((idx for idx, token in enumerate(answer) if token in ends), len(answer))
        if end + 1 >= MIN_GENERATED_TOKENS:
            samples.append(Sample(ids + answer[: end + 1], len(ids), prompt.domain, prompt.split))
    return samples


def _encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Returns the tokens of a user's turn, or of text to be continued, cut where it is long."""
    text = prompt.text
    if prompt.chat:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids if prompt.chat else ids[:MAX_PROMPT_TOKENS]
