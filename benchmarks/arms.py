"""The arms of a comparison: what each adds to the arguments that all of them share."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import ModelPair

# The host's built-in default config and ours of the same content: the same tiers in both arms.
SAME_CONFIG = "host-default"
ALL_TIERS = {"1": {"candidate_steps": [0, 1, 3, 5, 7]}}
PLAIN_ONLY = {"1": {"candidate_steps": [0]}}
# Arms that never change their depth: candidates for the best static setting.
STATIC_ARMS = ("none", "static-1", "static-3", "static-5", "static-7")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the same requests."""

    name: str
    speculative: tuple[str, ...] = ()  # arguments beside the draft's path
    config: Mapping[str, object] | None = None  # written to a file for ADAPTIVE_EAGLE
    policy: str = "own"  # or: alternate

    @property
    def is_static(self) -> bool:
        """Whether this arm never changes its depth."""
        return self.name in STATIC_ARMS

    @property
    def is_ours(self) -> bool:
        """Whether this arm loads our plugin."""
        return "ADAPTIVE_EAGLE" in self.speculative

    def arguments(self, pair: ModelPair, folder: Path) -> list[str]:
        """Returns this arm's server arguments; its config file goes to ``folder``."""
        if not self.speculative:
            return []
        arguments = [*self.speculative, "--speculative-draft-model-path", str(pair.draft)]
        if self.config is not None:
            path = folder / f"{self.name}.json"
            path.write_text(json.dumps(self.config))
            arguments += ["--speculative-adaptive-config", str(path)]
        return arguments


def static(num_steps: int) -> Arm:
    """Returns the host's own EAGLE-3 at a fixed depth."""
    shape = ("--speculative-num-steps", str(num_steps), "--speculative-eagle-topk", "1",
             "--speculative-num-draft-tokens", str(num_steps + 1))  # fmt: skip
    return Arm(f"static-{num_steps}", ("--speculative-algorithm", "EAGLE3", *shape))


BUILTIN = ("--speculative-algorithm", "EAGLE3", "--speculative-adaptive")
OURS = ("--speculative-algorithm", "ADAPTIVE_EAGLE")

ARMS = {
    arm.name: arm
    for arm in (
        Arm("none"),
        *(static(num_steps) for num_steps in (1, 3, 5, 7)),
        Arm("builtin", BUILTIN),
        Arm("ema", (*OURS, "--speculative-adaptive-config", SAME_CONFIG)),
        Arm("goodput", OURS),
        Arm("ema-alternate", OURS, ALL_TIERS, policy="alternate"),
        Arm("plain", OURS, PLAIN_ONLY),
    )
}


def simulated_accept_length(acceptance: str) -> float | None:
    """Returns the accept length that ``simX`` injects, or None for ``natural``.

    Raises:
        ValueError: The name is neither.
    """
    if acceptance == "natural":
        return None
    if acceptance.startswith("sim"):
        return float(acceptance[3:])
    raise ValueError(f"acceptance {acceptance!r}: use natural, or sim and a length such as sim3.5.")
