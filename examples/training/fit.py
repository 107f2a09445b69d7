"""Fits a head to the target's text."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from examples.training.data import Sample, hot_vocabulary, of_split
from examples.training.head import Eagle3Head
from examples.training.measure import MAX_LEN, NUM_STEPS, Drafting
from examples.training.target import Target
from examples.training.unroll import DraftStep, DraftVocabulary, loss_of

FINAL_LR_SHARE = 0.05
MAX_GRADIENT_NORM = 0.5
LOG_INTERVAL = 50
CHECKPOINT_S = 30.0


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How long and how fast to train; the defaults are those of SmolLM2's head."""

    train_s: float = 225.0
    batch_size: int = 64
    max_len: int = MAX_LEN
    num_steps: int = NUM_STEPS
    draft_vocab_size: int = 5120
    intermediate_size: int | None = None  # the target's
    trains_output: bool = True  # else output rows stay the target's, and need not be stored
    learning_rate: float = 8e-4
    warmup_steps: int = 100


class Trainer:
    """Owns the head, its vocabulary and the optimiser."""

    def __init__(self, target: Target, samples: Sequence[Sample], settings: FitSettings) -> None:
        self.target, self.settings = target, settings
        self.train_samples = of_split(samples, "train")
        self.held_out = of_split(samples, "heldout")
        config = target.head_config(settings.draft_vocab_size, settings.intermediate_size)
        hot = hot_vocabulary(
            samples, settings.draft_vocab_size, config.vocab_size, config.eos_token_id
        ).to(target.device)
        rows = target.output_rows(hot)
        self.vocabulary = DraftVocabulary.build(hot, config.vocab_size, rows)
        self.head = Eagle3Head(config)
        self.head.lm_head.weight.data.copy_(rows.float())
        self.head.lm_head.weight.requires_grad_(settings.trains_output)
        self.head.to(target.device)
        self.drafting = Drafting(target, self.head, self.vocabulary)
        self._optimiser = torch.optim.AdamW(
            self.head.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._rng = random.Random(1)
        self._num_updates, self._elapsed_s = 0, 0.0  # of the training so far

    def fit(
        self, clock: Callable[[], float] = time.monotonic, checkpoint: Path | None = None
    ) -> None:
        """Trains until `train_s` has passed on `clock`: linear warm-up times half a cosine.

        Args:
            clock: Seconds.
            checkpoint: Where training is kept twice a minute; it goes on from there.
        """
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)
        start, saved_s = clock() - self._elapsed_s, self._elapsed_s
        while (elapsed_s := clock() - start) < self.settings.train_s:
            self._elapsed_s = elapsed_s
            loss = self._train_step()
            if self._num_updates % LOG_INTERVAL == 0:
                print(f"step {self._num_updates}, {elapsed_s:.0f} s, loss {loss:.3f}", flush=True)
            if checkpoint is not None and elapsed_s - saved_s > CHECKPOINT_S:
                self._save(checkpoint)
                saved_s = elapsed_s
        self._elapsed_s = elapsed_s
        if checkpoint is not None:
            self._save(checkpoint)

    def _train_step(self) -> Tensor:
        settings = self.settings
        for group in self._optimiser.param_groups:
            progress = self._elapsed_s / settings.train_s
            group["lr"] = learning_rate(settings, self._num_updates, progress)
        count = min(settings.batch_size, len(self.train_samples))
        steps = self._unroll(self._rng.sample(self.train_samples, count), settings.num_steps)
        loss = loss_of(steps, self.vocabulary)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(self.head.parameters(), MAX_GRADIENT_NORM)
        self._optimiser.step()
        self._num_updates += 1
        return loss.detach()

    def _save(self, checkpoint: Path) -> None:
        """Keeps all that training goes on from; a process that is ended meanwhile loses nothing."""
        kept = {
            "head": self.head.state_dict(),
            "draft_tokens": self.vocabulary.token_ids,
            "optimiser": self._optimiser.state_dict(),
            "rng": self._rng.getstate(),
            "num_updates": self._num_updates,
            "elapsed_s": self._elapsed_s,
        }
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = checkpoint.with_suffix(".part")
        torch.save(kept, partial)
        partial.replace(checkpoint)

    def _load(self, checkpoint: Path) -> None:
        kept = torch.load(checkpoint, map_location=self.target.device, weights_only=True)
        if not torch.equal(kept["draft_tokens"], self.vocabulary.token_ids):
            raise ValueError(
                f"{checkpoint} has other draft tokens than this text gives; train on the same text."
            )
        self.head.load_state_dict(kept["head"])
        self._optimiser.load_state_dict(kept["optimiser"])
        version, numbers, gauss = kept["rng"]
        self._rng.setstate((version, tuple(numbers), gauss))
        self._num_updates, self._elapsed_s = kept["num_updates"], kept["elapsed_s"]

    def _unroll(self, samples: Sequence[Sample], num_steps: int) -> list[DraftStep]:
        return self.drafting.unrolled(samples, self.settings.max_len, num_steps)


def learning_rate(settings: FitSettings, step: int, progress: float) -> float:
    """Returns the rate at `step`, `progress` (0..1) of the time being spent."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return settings.learning_rate * warmup * (cosine * (1 - FINAL_LR_SHARE) + FINAL_LR_SHARE)


def checkpoint_of(head: Eagle3Head, vocabulary: DraftVocabulary) -> dict[str, Tensor]:
    """Returns the tensors SGLang loads: weights in bfloat16 and the two vocabulary maps."""
    tensors = {
        name: parameter.detach().to(torch.bfloat16).contiguous().cpu()
        for name, parameter in head.named_parameters()
    }
    token_ids = vocabulary.token_ids.cpu()
    # d2t holds offsets: target token = draft token + d2t[draft token].
    tensors["d2t"] = token_ids - torch.arange(len(token_ids))
    tensors["t2d"] = vocabulary.is_known.cpu()
    return tensors
