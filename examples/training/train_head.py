"""Trains an EAGLE-3 head for a small target on text that the target writes itself.

    python -m examples.smollm2.build_prompts prompts.jsonl
    python -m examples.training.train_head --model MODEL --prompts prompts.jsonl --out HEAD

SmolLM2's head took 225 s on one H200. Without a GPU it runs in float32, for smoke tests.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.training.data import Sample, read_prompts, read_samples, write_samples
from examples.training.fit import FitSettings, Trainer, checkpoint_of
from examples.training.measure import show
from examples.training.target import Target
from examples.training.writing import Sampling, TargetWriter, generate_samples

TEMPERATURE, TOP_P = 0.8, 0.95  # of every second batch of text


def main(argv: list[str] | None = None) -> int:
    """Generates text, trains, measures and saves."""
    args = _checked(parser(), argv)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    target = Target.load(args.model)
    settings = FitSettings(
        train_s=args.train_seconds,
        batch_size=args.batch_size,
        max_len=args.max_len,
        num_steps=args.num_steps,
        draft_vocab_size=args.draft_vocab_size,
        intermediate_size=args.intermediate_size,
        trains_output=not args.freeze_output,
        learning_rate=args.learning_rate,
    )
    trainer = Trainer(target, _load_samples(args, target), settings)
    trainer.fit(checkpoint=args.checkpoint)
    show(trainer.drafting.acceptance(trainer.held_out, settings.max_len, settings.num_steps))
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = checkpoint_of(trainer.head, trainer.vocabulary)
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(trainer.head.config.to_json(), indent=2) + "\n"
    (args.out / "config.json").write_text(config)
    return 0


def _load_samples(args: argparse.Namespace, target: Target) -> list[Sample]:
    if args.samples and args.samples.exists():
        return read_samples(args.samples)
    samples = generate_samples(
        TargetWriter(target),
        read_prompts(args.prompts),
        batch_size=args.generate_batch,
        new_tokens=args.new_tokens,
        sampling=Sampling(TEMPERATURE, TOP_P),
        limit_s=args.generate_seconds,
    )
    if args.samples:
        write_samples(args.samples, samples)
    return samples


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    defaults = FitSettings()
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    top.add_argument("--prompts", type=Path, required=True, help="JSON lines")
    top.add_argument("--out", type=Path, required=True, help="folder of the head")
    top.add_argument("--samples", type=Path, help="keep the generated text here, or reuse it")
    top.add_argument("--generate-seconds", type=float, default=200.0)
    top.add_argument("--generate-batch", type=int, default=2048)
    top.add_argument("--new-tokens", type=int, default=384)
    top.add_argument("--train-seconds", type=float, default=defaults.train_s)
    top.add_argument("--batch-size", type=int, default=defaults.batch_size)
    top.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    top.add_argument("--max-len", type=int, default=defaults.max_len)
    top.add_argument("--num-steps", type=int, default=defaults.num_steps)
    top.add_argument("--draft-vocab-size", type=int, default=defaults.draft_vocab_size)
    top.add_argument("--freeze-output", action="store_true", help="keep the target's rows")
    top.add_argument("--checkpoint", type=Path, help="keep training here, and go on from it")
    top.add_argument("--intermediate-size", type=int, help="default: the target's")
    return top


def _checked(top: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    args = top.parse_args(argv)
    if args.checkpoint and not args.samples:
        top.error("--checkpoint needs --samples: training goes on with the same text only.")
    return args


if __name__ == "__main__":
    sys.exit(main())
