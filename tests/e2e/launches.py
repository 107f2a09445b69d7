"""The servers of the tests: tiny seeded models, the real pair, and how to switch every round."""

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from examples.smollm2.fetch_target import TARGET as SMOLLM2
from sglang_adaptive_spec.tiers import Tier
from tests.e2e.server import OURS, Launch
from tests.hosts import CACHE, REPO
from tools import tiny_families, tiny_lora, tiny_models, tiny_mtp, tiny_targets, tiny_vision

CONFIGS = Path(__file__).parent / "configs"
TIERS = CONFIGS / "tiers.json"
ONE_TREE = CONFIGS / "one_tree.json"
RUNS = CONFIGS / "runs.json"
TREES = CONFIGS / "trees.json"  # chains and trees in one ladder
PACKED = CONFIGS / "packed.json"
CONFIDENT = CONFIGS / "confidence.json"
# The same where a table of what was written drafts.
OF_A_TABLE = {TIERS: CONFIGS / "ngram.json", RUNS: CONFIGS / "ngram_runs.json"}
NUM_STEPS = (0, 1, 3, 5)  # what TIERS may choose
ALGORITHM = ("--speculative-algorithm", "ADAPTIVE_EAGLE")
SERVED = ("--max-running-requests", "8", "--constrained-json-disable-any-whitespace")

MAKERS = (tiny_families, tiny_lora, tiny_models, tiny_mtp, tiny_targets, tiny_vision)
SOURCES = b"".join(Path(str(maker.__file__)).read_bytes() for maker in MAKERS)
MODELS = CACHE / f"tiny-models-{hashlib.sha256(SOURCES).hexdigest()[:12]}"
CONTEXT_LENGTH = 1024
TINY_SERVED = ("--context-length", str(CONTEXT_LENGTH), "--max-total-tokens", "8192", *SERVED)
TINY = ("--model-path", str(MODELS / "target"), *TINY_SERVED)
# DeepSeek-V3's shape: latent attention, experts, and a draft inside the target.
TINY_MTP = ("--model-path", str(MODELS / "mtp"), *TINY_SERVED)
HOT_TOKENS = MODELS / "hot-tokens.pt"
CHUNK_TOKENS = 64
MANY_SETTINGS = (
    *TINY,
    *("--chunked-prefill-size", str(CHUNK_TOKENS)),
    *("--enable-return-hidden-states", "--enable-priority-scheduling"),
)
# Every token follows from the one before, and the draft knows how.
PERFECT = ("--model-path", str(MODELS / "perfect-target"), *TINY_SERVED)
PAIR = (
    *("--model-path", str(CACHE / SMOLLM2.folder), "--context-length", "2048"),
    *("--max-total-tokens", "8192", *SERVED),
)
PAIR_DRAFT = REPO / "examples" / "smollm2" / "eagle3-head"


def ensure_tiny_models() -> None:
    """Writes the models once per version of their maker; complete or not at all."""
    if MODELS.is_dir():
        return
    CACHE.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=CACHE, prefix="tiny-models-part-"))
    tiny_models.make_tiny_models(partial)
    tiny_mtp.make_tiny_mtp(partial)
    tiny_lora.make_tiny_lora(partial)
    tiny_targets.make_tiny_targets(partial)
    try:
        partial.rename(MODELS)
    except OSError:  # another session was faster
        shutil.rmtree(partial)


CONFIDENCE_PLUGINS = {
    "confidence": "forced_confidence",
    "ids": "drafts_as_confidence",
    "askew": "askew_confidence",
}


def draft(name: str) -> tuple[str, ...]:
    """Returns the arguments that name the tiny draft ``eagle``, ``eagle3`` or ``standalone``.

    None for ``ngram``, which has no draft model.
    """
    return () if name == "ngram" else ("--speculative-draft-model-path", str(MODELS / name))


def adaptive(
    base: str, *args: str, host: str = "0.5.21", overlap: bool = False, config: Path = TIERS
) -> Launch:
    """ADAPTIVE_EAGLE with the tiny models, switching by its own policy."""
    if base == "ngram":
        config = OF_A_TABLE[config]
    arguments = (*ALGORITHM, *draft(base), "--speculative-adaptive-config", str(config), *args)
    return Launch(base, TINY, arguments, host=host, overlap=overlap)


def static(base: str, tier: Tier) -> Launch:
    """SGLang's own EAGLE with the tiny models, at one shape."""
    shape = (
        *("--speculative-algorithm", base.upper(), "--speculative-eagle-topk", str(tier.topk)),
        *("--speculative-num-steps", str(tier.num_steps)),
        *("--speculative-num-draft-tokens", str(tier.num_draft_tokens)),
    )
    return Launch(f"{base}-static-{tier.label}", TINY, (*shape, *draft(base)), overlap=True)


def pinned(base: str, *args: str) -> Launch:
    """ADAPTIVE_EAGLE at another tier in every round, but for requests named after a depth."""
    launch = adaptive(base, *args, overlap=True)
    return replace(launch, name=f"{base}-pinned", plugins=(OURS, "pinned"), strict=True)


def forced(
    base: str, *mutants: str, host: str = "0.5.21", overlap: bool = False, config: Path = TIERS
) -> Launch:
    """The same, at another tier in every round, under the host's own checks but for mutants."""
    plugins = (OURS, "forced_switch", *mutants)
    name = "-".join((base, *(mutants or ("forced",)), *([] if config == TIERS else [config.stem])))
    launch = adaptive(base, host=host, overlap=overlap, config=config)
    # A mutant must be found by its text, not by a check of the host's.
    return replace(launch, name=name, plugins=plugins, strict=not mutants)


def packed(base: str, *mutants: str, host: str = "0.5.21", overlap: bool = True) -> Launch:
    """The same, where every round verifies another length of each row, too."""
    launch = forced(base, *mutants, host=host, overlap=overlap, config=PACKED)
    plugins = (OURS, "forced_lengths", *mutants)
    return replace(launch, name=f"{launch.name}-packed", plugins=plugins)


def by_confidence(
    base: str, *mutants: str, host: str = "0.5.21", overlap: bool = True, told: str = "confidence"
) -> Launch:
    """The same, where the draft's confidence says which of so many drafts they are.

    ``told`` "ids": the ids of drafts are told in its place; "askew": by two tensor-parallel ranks,
    and the second's draft is less sure.
    """
    launch = forced(base, *mutants, host=host, overlap=overlap, config=CONFIDENT)
    plugin = CONFIDENCE_PLUGINS[told]
    args = (*launch.args, "--tp-size", "2") if told == "askew" else launch.args
    name = f"{launch.name}-by-{told}"
    return replace(launch, name=name, args=args, plugins=(OURS, plugin, *mutants))


def forced_parallel(base: str, host: str, overlap: bool) -> Launch:
    """The same over chains and trees, served by two tensor-parallel ranks."""
    launch = forced(base, host=host, overlap=overlap, config=TREES)
    name, args = f"{launch.name}-tp2", (*launch.args, "--tp-size", "2")
    return replace(launch, name=name, args=args)


def forced_on_two_ranks(base: str, host: str) -> Launch:
    """The same over chains, served by two tensor-parallel ranks."""
    launch = forced(base, host=host, overlap=True)
    return replace(launch, name=f"{launch.name}-tp2", args=(*launch.args, "--tp-size", "2"))


def forced_mtp(host: str, overlap: bool) -> Launch:
    """The same over chains and trees, the draft being the target's own MTP layer."""
    launch = forced("eagle", host=host, overlap=overlap, config=TREES)
    arguments = (*ALGORITHM, "--speculative-adaptive-config", str(TREES))
    return replace(launch, name="mtp-forced-trees", target=TINY_MTP, args=arguments)


def in_runs(base: str, name: str, target: tuple[str, ...], host: str, overlap: bool) -> Launch:
    """The same, in runs of up to 8 decodes at zero steps (plugins/e2e_plugins/runs.py)."""
    launch = forced(base, host=host, overlap=overlap, config=RUNS)
    return replace(launch, name=name, target=target, plugins=(OURS, "runs"))


def many_settings(host: str, overlap: bool, has_token_map: bool) -> Launch:
    """EAGLE in runs, with settings that few tests ask for, on one server to save starts."""
    launch = in_runs("eagle", "eagle-settings", MANY_SETTINGS, host, overlap)
    if not has_token_map:
        return launch
    token_map = ("--speculative-token-map", str(HOT_TOKENS))
    return replace(launch, name="eagle-token-map", args=(*launch.args, *token_map))


def perfect_drafts(host: str, overlap: bool) -> Launch:
    """EAGLE in runs, with a draft that is always right."""
    launch = in_runs("eagle", "eagle-perfect", PERFECT, host, overlap)
    return replace(launch, args=(*launch.args, *draft("perfect-eagle")))  # the later one counts


# Shared by tests of a setting each: a server that several modules ask starts once.
WITH_SETTINGS = [
    many_settings("0.5.21", overlap=True, has_token_map=False),
    many_settings("0.5.23", overlap=False, has_token_map=True),
]
