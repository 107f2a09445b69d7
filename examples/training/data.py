"""Training text: written by the target itself, batched, and its most frequent tokens."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from examples.training.target import Target

MAX_PROMPT_TOKENS = 320
MIN_GENERATED_TOKENS = 8
TEMPERATURE, TOP_P = 0.8, 0.95
MIN_HELD_OUT = 8
HELD_OUT_SHARE = 20  # one prompt in this many


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `chat` says whether it is a user turn or raw text to be continued."""

    domain: str
    chat: bool
    text: str
    split: str = "train"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt with the target's answer; the answer starts at `prompt_len`."""

    ids: list[int]
    prompt_len: int
    domain: str
    split: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded samples."""

    tokens: Tensor  # [bs, length] int64
    is_generated: Tensor  # [bs, length] bool: written by the target, not prompt or padding


def hold_out(prompts: Sequence[Prompt], rng: random.Random) -> list[Prompt]:
    """Returns ``prompts`` in another order, one in twenty of them held out of training."""
    mixed = list(prompts)
    rng.shuffle(mixed)
    num_held_out = len(mixed) // HELD_OUT_SHARE
    mixed[:num_held_out] = [replace(prompt, split="heldout") for prompt in mixed[:num_held_out]]
    rng.shuffle(mixed)
    return mixed


def read_prompts(path: Path) -> list[Prompt]:
    """Reads what `write_prompts` wrote."""
    return [Prompt(**json.loads(line)) for line in path.read_text().splitlines()]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Writes prompts as JSON lines, and says how many."""
    path.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts))
    num_held_out = sum(prompt.split == "heldout" for prompt in prompts)
    print(f"{len(prompts)} prompts, {num_held_out} held out -> {path}")


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Writes samples as JSON lines."""
    path.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))


def read_samples(path: Path) -> list[Sample]:
    """Reads what `write_samples` wrote."""
    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()]


def generate_samples(
    target: Target,
    prompts: Sequence[Prompt],
    *,
    batch_size: int,
    new_tokens: int,
    limit_s: float,
) -> list[Sample]:
    """Lets the target answer held-out, then training prompts, until `limit_s` has passed.

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
        samples += _answer(target, batch, new_tokens, is_greedy=is_greedy)
        num_tokens = sum(len(sample.ids) - sample.prompt_len for sample in samples)
        print(f"generated {len(samples)} samples, {num_tokens} tokens", flush=True)
    return samples


@torch.no_grad()
def _answer(
    target: Target, prompts: Sequence[Prompt], new_tokens: int, *, is_greedy: bool
) -> list[Sample]:
    tokenizer = target.tokenizer
    encoded = tokenizer(
        [_render(target, prompt) for prompt in prompts],
        return_tensors="pt",
        padding=True,
        truncation=True,
        max_length=MAX_PROMPT_TOKENS,
        add_special_tokens=False,
    ).to(target.device)
    sampling = {"temperature": TEMPERATURE, "top_p": TOP_P, "top_k": 0, "do_sample": True}
    greedy = {"temperature": None, "top_p": None, "top_k": None, "do_sample": False}
    output = target.model.generate(
        **encoded,
        max_new_tokens=new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        **(greedy if is_greedy else sampling),
    )
    samples = []
    for row, prompt in enumerate(prompts):
        ids = encoded.input_ids[row][encoded.attention_mask[row].bool()].tolist()
        answer = output[row, encoded.input_ids.shape[1] :].tolist()
        if tokenizer.eos_token_id in answer:
            answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
        if len(answer) >= MIN_GENERATED_TOKENS:
            samples.append(Sample(ids + answer, len(ids), prompt.domain, prompt.split))
    return samples


def _render(target: Target, prompt: Prompt) -> str:
    if not prompt.chat:
        return prompt.text
    turn = [{"role": "user", "content": prompt.text}]
    text: str = target.tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, tokenize=False
    )
    return text


def collate(samples: Sequence[Sample], max_len: int, pad_id: int, device: str) -> Batch:
    """Pads samples to the longest, cut at `max_len`."""
    length = min(max_len, max(len(sample.ids) for sample in samples))
    tokens = torch.full((len(samples), length), pad_id)
    is_generated = torch.zeros(len(samples), length, dtype=torch.bool)
    for row, sample in enumerate(samples):
        end = min(length, len(sample.ids))
        tokens[row, :end] = torch.tensor(sample.ids[:end])
        is_generated[row, sample.prompt_len : end] = True
    return Batch(tokens.to(device), is_generated.to(device))


def hot_vocabulary(
    samples: Sequence[Sample], size: int, vocab_size: int, eos_token_id: int
) -> Tensor:
    """Returns the `size` draft tokens, ascending: the most frequent generated ones and the end.

    Filled up from token 0 where the text holds fewer distinct tokens.
    """
    counts = Counter(
        token for s in samples if s.split == "train" for token in s.ids[s.prompt_len :]
    )
    chosen = sorted({token for token, _ in counts.most_common(size)} | {eos_token_id})
    known = set(chosen)
    chosen += [token for token in range(vocab_size) if token not in known]
    return torch.tensor(sorted(chosen[:size]))
