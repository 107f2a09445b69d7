"""Has a running SGLang write the training text: faster than transformers does.

    python -m sglang.launch_server --model-path MODEL --skip-tokenizer-init
    python -m examples.training.write_text --model MODEL --prompts prompts.jsonl --out text.jsonl.xz

Train on it with `train_head --samples text.jsonl.xz`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from examples.client import post_json
from examples.training.data import read_prompts, write_samples
from examples.training.writing import Sampling, generate_samples

TIMEOUT_S = 600


class ServerWriter:
    """The target in a server without a tokenizer of its own."""

    def __init__(self, url: str, model: Path) -> None:
        self._url = url
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def write(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, sampling: Sampling
    ) -> list[list[int]]:
        """Answers all prompts, as many at once as the server runs."""
        wanted = {**sampling._asdict(), "max_new_tokens": new_tokens}
        body = {"input_ids": [*prompts], "sampling_params": wanted}
        answers = post_json(f"{self._url}/generate", body, TIMEOUT_S)
        return [each["output_ids"] for each in answers]


def main(argv: list[str] | None = None) -> int:
    """Writes the text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; .xz compresses them")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=360.0, help="no batch starts after them")
    parser.add_argument("--batch", type=int, default=2048, help="prompts that are sent at once")
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.7, help="of every second batch")
    parser.add_argument(
        "--passes",
        type=int,
        default=1,
        help="2: both kinds of each text",
    )
    parser.add_argument("--held-out-temperature", type=float, default=0.0, help="[greedy]")
    args = parser.parse_args(argv)
    samples = generate_samples(
        ServerWriter(args.url, args.model),
        read_prompts(args.prompts),
        batch_size=args.batch,
        new_tokens=args.new_tokens,
        sampling=Sampling(args.temperature),
        limit_s=args.seconds,
        held_out=Sampling(args.held_out_temperature),
        passes=args.passes,
    )
    write_samples(args.out, samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
