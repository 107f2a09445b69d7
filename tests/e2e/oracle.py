"""What transformers computes for a model: the CPU host could be wrong with and without drafts."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NUM_COMPARED = 48  # tokens of each answer


def greedy_by_transformers(folder: Path, prompt: str) -> list[int]:
    """Returns the likeliest tokens, each from the whole text before it."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(prompt)["input_ids"]
    start = len(ids)
    with torch.no_grad():
        for _ in range(NUM_COMPARED):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[start:]
