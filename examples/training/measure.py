"""How many drafts of a head hold on held-out text, by domain and draft step.

    python -m examples.training.measure --model MODEL --head HEAD --samples text.jsonl.xz

Every position of the target's own text drafts once. A draft behind a right one is fed what serving
would feed it, so its hit is what serving would find.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.training.data import Sample, collate, of_split, read_samples
from examples.training.head import Eagle3Head, HeadConfig
from examples.training.target import Target
from examples.training.unroll import DraftStep, DraftVocabulary, hits_of, unroll

MAX_LEN, NUM_STEPS = 512, 5
EVALUATION_BATCH = 16


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance on held-out text of one domain, drafting from every position."""

    top1: float  # share of first drafts that hold
    num_correct_drafts: float  # mean accepted in a row, bonus not counted
    histogram: tuple[float, ...]  # share of positions with 0, 1, ... drafts accepted
    num_positions: int


class Drafting:
    """A head on top of its target."""

    def __init__(self, target: Target, head: Eagle3Head, vocabulary: DraftVocabulary) -> None:
        self.target, self.head, self.vocabulary = target, head, vocabulary

    @classmethod
    def load(cls, target: Target, folder: Path) -> "Drafting":
        """Loads a head as SGLang serves it."""
        config = json.loads((folder / "config.json").read_text())
        names = HeadConfig.__dataclass_fields__
        head = Eagle3Head(HeadConfig(**{name: config[name] for name in names}))
        tensors = load_file(folder / "model.safetensors")
        offsets, _known = tensors.pop("d2t"), tensors.pop("t2d")
        head.load_state_dict(tensors)
        token_ids = (offsets + torch.arange(len(offsets))).to(target.device)
        rows = target.output_rows(token_ids)
        vocabulary = DraftVocabulary.build(token_ids, config["vocab_size"], rows)
        return cls(target, head.to(target.device).requires_grad_(False), vocabulary)

    def unrolled(self, samples: Sequence[Sample], max_len: int, num_steps: int) -> list[DraftStep]:
        """Drafts ``num_steps`` tokens from every position of some samples at once."""
        pad_id = self.target.tokenizer.pad_token_id
        batch = collate(samples, max_len, pad_id, self.target.device)
        is_cuda = self.target.device == "cuda"
        with torch.autocast(self.target.device, torch.bfloat16, enabled=is_cuda):
            return unroll(self.head, self.target.features(batch.tokens), batch, num_steps)

    @torch.no_grad()
    def acceptance(
        self,
        samples: Sequence[Sample],
        max_len: int = MAX_LEN,
        num_steps: int = NUM_STEPS,
        max_samples: int = 64,
    ) -> dict[str, Acceptance]:
        """Returns acceptance by domain, of at most ``max_samples`` of each."""
        by_domain = {}
        for domain, chosen in by_domains(samples, max_samples):
            hits = []
            for first in range(0, len(chosen), EVALUATION_BATCH):
                steps = self.unrolled(chosen[first : first + EVALUATION_BATCH], max_len, num_steps)
                hits.append(hits_of(steps, self.vocabulary)[steps[0].is_counted])
            if len(found := torch.cat(hits)):
                by_domain[domain] = summarise(found)
        return by_domain


def by_domains(samples: Sequence[Sample], most: int) -> Iterator[tuple[str, list[Sample]]]:
    """Yields each domain with at most ``most`` of its samples."""
    for domain in sorted({sample.domain for sample in samples}):
        yield domain, [sample for sample in samples if sample.domain == domain][:most]


def summarise(hits: Tensor) -> Acceptance:
    """Summarises hits [num_positions, num_steps] bool."""
    accepted = hits.int().cumprod(-1).sum(-1)
    shares = [(accepted == n).float().mean().item() for n in range(hits.shape[-1] + 1)]
    return Acceptance(
        top1=round(hits[:, 0].float().mean().item(), 3),
        num_correct_drafts=round(accepted.float().mean().item(), 2),
        histogram=tuple(round(share, 2) for share in shares),
        num_positions=len(accepted),
    )


def show(by_domain: dict[str, Acceptance]) -> None:
    """Prints a line a domain."""
    for domain, acceptance in by_domain.items():
        print(f"held-out {domain}: {json.dumps(asdict(acceptance))}", flush=True)


def measured(
    model: Path,
    heads: Sequence[Path],
    samples: Path,
    num_steps: int = NUM_STEPS,
    max_samples: int = 64,
) -> list[dict[str, Acceptance]]:
    """Returns acceptance by domain of each head, a folder, on the held-out text of a file."""
    target, held_out = Target.load(model), of_split(read_samples(samples), "heldout")
    return [
        Drafting.load(target, head).acceptance(
            held_out, num_steps=num_steps, max_samples=max_samples
        )
        for head in heads
    ]


def main(argv: list[str] | None = None) -> int:
    """Measures one head."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--head", type=Path, required=True, help="its folder, unpacked")
    parser.add_argument("--samples", type=Path, required=True, help="text of the target")
    parser.add_argument("--max-samples", type=int, default=64, help="of a domain [64]")
    parser.add_argument("--num-steps", type=int, default=NUM_STEPS)
    args = parser.parse_args(argv)
    (found,) = measured(args.model, [args.head], args.samples, args.num_steps, args.max_samples)
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
