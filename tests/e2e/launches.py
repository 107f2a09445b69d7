"""The servers of the tests: tiny seeded models, the real pair, and how to switch every round."""

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from examples.smollm2.fetch_target import FOLDER as PAIR_FOLDER
from tests.e2e.server import OURS, Launch
from tests.hosts import CACHE, REPO
from tools.tiny_models import make_tiny_models

TIERS = Path(__file__).parent / "configs" / "tiers.json"
NUM_STEPS = (0, 1, 3, 5)  # what TIERS may choose
ALGORITHM = ("--speculative-algorithm", "ADAPTIVE_EAGLE")
SERVED = ("--max-running-requests", "8", "--constrained-json-disable-any-whitespace")

MAKER = REPO / "tools" / "tiny_models.py"
MODELS = CACHE / f"tiny-models-{hashlib.sha256(MAKER.read_bytes()).hexdigest()[:12]}"
TINY = (
    *("--model-path", str(MODELS / "target"), "--context-length", "1024"),
    *("--max-total-tokens", "8192", *SERVED),
)
PAIR = (
    *("--model-path", str(CACHE / PAIR_FOLDER), "--context-length", "2048"),
    *("--max-total-tokens", "8192", *SERVED),
)
PAIR_DRAFT = REPO / "examples" / "smollm2" / "eagle3-head"


def ensure_tiny_models() -> None:
    """Writes the models once per version of their maker; complete or not at all."""
    if MODELS.is_dir():
        return
    CACHE.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=CACHE, prefix="tiny-models-part-"))
    make_tiny_models(partial)
    try:
        partial.rename(MODELS)
    except OSError:  # another session was faster
        shutil.rmtree(partial)


def draft(name: str) -> tuple[str, ...]:
    """Returns the arguments that name the tiny draft ``eagle`` or ``eagle3``."""
    return ("--speculative-draft-model-path", str(MODELS / name))


def adaptive(base: str, *args: str, host: str = "0.5.21", overlap: bool = False) -> Launch:
    """ADAPTIVE_EAGLE with the tiny models, switching by its own policy."""
    arguments = (*ALGORITHM, *draft(base), "--speculative-adaptive-config", str(TIERS), *args)
    return Launch(base, TINY, arguments, host=host, overlap=overlap)


def forced(base: str, *mutants: str, host: str = "0.5.21", overlap: bool = False) -> Launch:
    """The same, at another tier in every round, under the host's own checks."""
    plugins = (OURS, "forced_switch", *mutants)
    name = "-".join((base, *(mutants or ("forced",))))
    launch = adaptive(base, host=host, overlap=overlap)
    # A mutant must be found by its text, not by a check of the host's.
    return replace(launch, name=name, plugins=plugins, strict=not mutants)
