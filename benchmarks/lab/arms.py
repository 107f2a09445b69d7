"""The arms of a comparison: what each adds to the arguments that all of them share."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.lab.models import ModelPair
from sglang_adaptive_spec.config.schema import preset_path
from sglang_adaptive_spec.tiers import Tier, chain_tier

# The host's built-in default config and ours of the same content: the same tiers in both arms.
SAME_CONFIG = "host-default"
ALL_TIERS = {"policy": "ema", "1": {"candidate_steps": [0, 1, 3, 5, 7]}}
OF_DRAFT = "{algorithm}"  # the host's, which the pair names
ADAPTED = ("EAGLE", "EAGLE3")  # by SGLang's own adaptive mode
EARLIER = "at-"  # begins the name of an arm that an earlier commit serves


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the same requests."""

    name: str
    speculative: tuple[str, ...] = ()  # arguments beside the draft's path
    config: Mapping[str, object] | None = None  # written to a file for ADAPTIVE_EAGLE
    policy: str = "own"  # or: alternate, lengths, confidence
    extra: tuple[str, ...] = ()  # arguments that come last, so that they win over shared ones
    environment: Mapping[str, str] | None = None  # beside that of all servers
    has_draft: bool = True  # else a table of what was written drafts
    is_prefill: bool = False  # reads prompts for another server, and decodes nothing

    @property
    def is_ours(self) -> bool:
        """Whether this arm loads our plugin."""
        return "ADAPTIVE_EAGLE" in self.speculative

    def arguments(self, pair: ModelPair, folder: Path) -> list[str]:
        """Returns this arm's server arguments; its config file goes to ``folder``."""
        if not self.speculative:
            return list(self.extra)
        if "--speculative-adaptive" in self.speculative and pair.algorithm not in ADAPTED:
            raise ValueError(
                f"SGLang's adaptive mode does not serve {pair.algorithm}: no {self.name}."
            )
        words = [word.format(algorithm=pair.algorithm) for word in self.speculative]
        draft = ["--speculative-draft-model-path", str(pair.draft)] if self.has_draft else []
        arguments = [*words, *draft]
        if self.config is not None:
            path = folder / f"{self.name}.json"
            path.write_text(json.dumps(self.config))
            arguments += ["--speculative-adaptive-config", str(path)]
        return [*arguments, *self.extra]


def static(tier: Tier, algorithm: str = OF_DRAFT) -> Arm:
    """Returns the host's own speculation at a fixed shape."""
    shape = (
        *("--speculative-num-steps", str(tier.num_steps)),
        *("--speculative-eagle-topk", str(tier.topk)),
        *("--speculative-num-draft-tokens", str(tier.num_draft_tokens)),
    )
    return Arm(f"static-{tier.label}", ("--speculative-algorithm", algorithm, *shape))


def static_table(num_nodes: int) -> Arm:
    """Returns the host's NGRAM that verifies so many nodes beyond the root."""
    tokens = ("--speculative-num-draft-tokens", str(num_nodes + 1))
    words = ("--speculative-algorithm", "NGRAM", *tokens)
    return Arm(f"static-ngram-{num_nodes}", words, has_draft=False)


BUILTIN = ("--speculative-algorithm", OF_DRAFT, "--speculative-adaptive")
OURS = ("--speculative-algorithm", "ADAPTIVE_EAGLE")
PRESET: dict[str, object] = json.loads(preset_path("goodput").read_bytes())

ARMS = {
    arm.name: arm
    for arm in (
        Arm("none"),
        *(static(chain_tier(num_steps)) for num_steps in (1, 3, 5, 7, 10)),
        Arm("builtin", BUILTIN),
        Arm("ema", (*OURS, "--speculative-adaptive-config", SAME_CONFIG)),
        Arm("goodput", OURS),
        Arm("goodput-packed", OURS, {**PRESET, "packing": True}),
        Arm("goodput-confident", OURS, {**PRESET, "packing": True, "confidence": True}),
        Arm("goodput-tiers", OURS, {**PRESET, "packing": False}),
        Arm("ema-alternate", OURS, ALL_TIERS, policy="alternate"),
        *map(static_table, (1, 3, 7, 15)),
        Arm("goodput-ngram", (*OURS, "--speculative-adaptive-config", "ngram"), has_draft=False),
    )
}


def recording(arm: Arm, path: Path) -> Arm:
    """Returns an arm of the policy goodput that writes every round to ``path``."""
    return replace(arm, config={**(arm.config or PRESET), "record": str(path)})


def add_before(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that names an earlier commit, whose ADAPTIVE_EAGLE serves beside ours."""
    parser.add_argument("--before", metavar="COMMIT=FOLDER", help="serves what lies there, too")


def earlier(arm: Arm, before: str | None) -> list[Arm]:
    """Returns the arm as an earlier commit serves it, plugins of benchmarks included; or nothing.

    Args:
        arm: ours.
        before: COMMIT=FOLDER, where the folder holds that commit's package, and benchmarks/ of
            this checkout or whatever of that commit's answers as this one does (git archive
            COMMIT sglang_adaptive_spec; git archive HEAD benchmarks). None: no arm.

    Raises:
        ValueError: The folder does not hold them.
    """
    if before is None:
        return []
    commit, _, folder = before.partition("=")
    root = Path(folder).resolve()
    if (
        not commit
        or not folder
        or not all((root / name).is_dir() for name in ("sglang_adaptive_spec", "benchmarks/inject"))
    ):
        raise ValueError(f"--before is {before!r}; allowed: COMMIT=FOLDER, both packages in it.")
    # The second, because `python -m` would find this checkout first, in the current folder.
    # A cache of its own: it measures its round times itself instead of reading ours.
    paths = {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1", "XDG_CACHE_HOME": str(root / ".cache")}
    environment = {**(arm.environment or {}), **paths}
    return [replace(arm, name=f"{EARLIER}{commit}", environment=environment)]


def is_earlier(arm: str) -> bool:
    """Whether an earlier commit serves the arm of this name."""
    return arm.startswith(EARLIER)
