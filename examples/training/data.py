"""Training text: prompts, the answers to them, batches, and the most frequent tokens."""

import json
import lzma
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

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
    _write_whole(path, "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts).encode())
    num_held_out = sum(prompt.split == "heldout" for prompt in prompts)
    print(f"{len(prompts)} prompts, {num_held_out} held out -> {path}")


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Writes samples as JSON lines, compressed where the path ends in .xz."""
    lines = "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)
    content = lines.encode()
    _write_whole(path, lzma.compress(content) if path.suffix == ".xz" else content)


def _write_whole(path: Path, content: bytes) -> None:
    """Writes a file, or none: who is ended meanwhile leaves nothing that looks complete."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)


def read_samples(path: Path) -> list[Sample]:
    """Reads what `write_samples` wrote."""
    content = path.read_bytes()
    lines = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
    return [Sample(**json.loads(line)) for line in lines.splitlines()]


def of_split(samples: Iterable[Sample], split: str) -> list[Sample]:
    """Returns the samples that are for training, or those held out of it."""
    return [sample for sample in samples if sample.split == split]


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
    counts = Counter(token for s in of_split(samples, "train") for token in s.ids[s.prompt_len :])
    chosen = sorted({token for token, _ in counts.most_common(size)} | {eos_token_id})
    known = set(chosen)
    chosen += [token for token in range(vocab_size) if token not in known]
    return torch.tensor(sorted(chosen[:size]))
