"""Writes the training prompts as JSON lines: `python -m examples.smollm2.build_prompts OUT.jsonl`.

The shipped head was trained on 5,000 prompts per domain with Python 3.11.
"""

import sys

from examples.smollm2.prompts import build_prompts
from examples.training.build_prompts import build_command

if __name__ == "__main__":
    sys.exit(build_command(build_prompts, "--per-domain", 5000))
