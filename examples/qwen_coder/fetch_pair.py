"""Fetches the target, and unpacks the head for it: what a server of the pair is started with.

    python -m sglang.launch_server --speculative-algorithm ADAPTIVE_EAGLE \\
        $(python -m examples.qwen_coder.fetch_pair)
"""

import argparse
import shutil
import sys
from pathlib import Path

from examples.qwen_coder.fetch_target import TARGET
from examples.training import packing
from examples.wheels import sha256_of

PACKED = Path(__file__).with_name("eagle3-head")


def fetch_pair(cache: Path) -> tuple[Path, Path]:
    """Returns the folders of target and head in `cache`, making them on the first call."""
    target = TARGET.fetch(cache)
    digest = sha256_of(PACKED / packing.PACKED)
    head = cache / f"{TARGET.folder}-eagle3-{digest[:12]}"  # another head has another folder
    if not head.is_dir():
        building = head.with_name(f"{head.name}.part")
        shutil.rmtree(building, ignore_errors=True)
        packing.unpack(PACKED, building, target)
        building.rename(head)
    return target, head


def main(argv: list[str] | None = None) -> int:
    """Prints the arguments of a server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="default: %(default)s")
    target, head = fetch_pair(parser.parse_args(argv).cache.resolve())
    print(f"--model-path {target} --speculative-draft-model-path {head}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
