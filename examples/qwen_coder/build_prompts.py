"""Writes the training prompts as JSON lines: `python -m examples.qwen_coder.build_prompts OUT`."""

import sys

from examples.qwen_coder.prompts import NUM_PROMPTS, build_prompts
from examples.training.build_prompts import build_command

if __name__ == "__main__":
    sys.exit(build_command(build_prompts, "--prompts", NUM_PROMPTS))
