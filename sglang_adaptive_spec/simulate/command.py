"""What `sglang-adaptive-spec simulate` does: from names and files to reports."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from sglang_adaptive_spec.config.schema import AdaptiveConfig, load_config
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.policy.ema import EmaPolicy
from sglang_adaptive_spec.policy.goodput import GoodputPolicy
from sglang_adaptive_spec.policy.protocol import Choices
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.simulate.recorded import RecordedWorkload
from sglang_adaptive_spec.simulate.regret import WorkloadReport, compare
from sglang_adaptive_spec.simulate.replay import Replay, RoundCosts
from sglang_adaptive_spec.simulate.synthetic import changing_workloads, golden_workloads
from sglang_adaptive_spec.simulate.true_costs import (
    DEFAULT_EXAMPLE,
    EXAMPLES,
    ExampleCosts,
    read_table,
    seed_table,
)
from sglang_adaptive_spec.simulate.workload import Workload
from sglang_adaptive_spec.tiers import chain_tier
from sglang_adaptive_spec.trace.format import read_trace

STEPS = (0, 1, 2, 3, 5, 7, 10)  # replayed as static tiers, and what the oracle may choose from
DEFAULT_POLICIES = ("goodput", "ema")
EMA_PRESET = "host-default"
ALL = "all"
STATIC = re.compile(r"static-(\d{1,2})")


class SimulateError(ValueError):
    """A name that is none: one sentence with what was got, what is allowed, a fix."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asked for."""

    traces: Sequence[Path] = ()
    golden: Sequence[str] = ()
    policies: Sequence[str] = ()
    costs: str | None = None  # a file, or the name of an example
    config: str | None = None
    cost_noise: float = 0.0  # relative error of the goodput policy's own cost table
    settings: Settings = DEFAULTS  # of goodput


@dataclass(frozen=True, slots=True)
class Draws:
    """What goodput serves of a trace, by draw of the cost noise."""

    workload: str
    values: tuple[float, ...]  # tokens per s; with changed settings over those of the defaults

    @property
    def mean(self) -> float:
        """Returns the geometric mean of the draws."""
        return geometric_mean(self.values)


def simulate(question: Question) -> tuple[list[WorkloadReport], str]:
    """Returns a report per trace, and where the costs come from.

    Raises:
        ValueError: A file or name is wrong; the message says which.
    """
    costs, steps, origin = _costs(question)
    names = tuple(dict.fromkeys(question.policies or DEFAULT_POLICIES))
    if question.settings != DEFAULTS and "goodput" not in names:
        raise SimulateError(
            f"settings are those of goodput, and the policies are {', '.join(names)}; allowed: no "
            "settings there; fix: add --policy goodput."
        )
    statics = [int(found[1]) for name in names if (found := STATIC.fullmatch(name))]
    config = None if question.config is None else _chains_of(question.config)
    policies: dict[str, Callable[[], Choices]] = {}
    wanted = {*statics}
    for name in (name for name in names if not STATIC.fullmatch(name)):
        if name == "goodput":
            own = config or _shipped(steps)
            wanted.update(own.candidate_steps)
            policies[name] = partial(
                goodput, costs, own, question.cost_noise, settings=question.settings
            )
        elif name == "ema":
            ema = config or load_config(EMA_PRESET)
            wanted.update(ema.candidate_steps)
            policies[name] = partial(EmaPolicy, ema, ema.initial_steps(None))
        else:
            raise SimulateError(
                f"there is no policy {name!r}; allowed: goodput, ema, static-N; "
                "fix: name one of them."
            )
    if isinstance(costs, ExampleCosts):
        steps = tuple(sorted(wanted.union(steps)))
    elif not wanted <= set(steps):
        raise SimulateError(
            f"{origin} has no costs of {min(wanted - set(steps))} steps; allowed: "
            f"{', '.join(map(str, steps))}; fix: name other policies, steps or costs."
        )
    workloads = _workloads(question, steps[-1])
    tiers = tuple(map(chain_tier, steps))
    return [compare(workload, costs, tiers, policies) for workload in workloads], origin


def checked_draws(asked: int | None, has_changes: bool) -> int:
    """Returns the draws to serve: by default one if settings were changed, else none.

    Raises:
        ValueError: Less than one is asked for.
    """
    if asked is None:
        return int(has_changes)
    if asked < 1:
        raise SimulateError(f"--draws is {asked}; allowed: 1 or more; fix: --draws 4.")
    return asked


def in_draws(question: Question, num_draws: int) -> list[Draws]:
    """Returns what goodput serves per trace, over the defaults where its settings were changed.

    One draw of the cost noise says little: where two tiers tie, it decides which stays.

    Raises:
        ValueError: A file or name is wrong.
    """
    costs, steps, _ = _costs(question)
    own = _shipped(steps) if question.config is None else _chains_of(question.config)
    compared = [question.settings]
    if question.settings != DEFAULTS:
        compared.append(DEFAULTS)
    found = []
    for workload in _workloads(question, max(*steps, *own.candidate_steps)):
        values = []
        for seed in range(1, num_draws + 1):
            policies = [goodput(costs, own, question.cost_noise, seed, each) for each in compared]
            served = [Replay(each, workload, costs).run().tokens_per_s for each in policies]
            values.append(served[0] / served[1] if len(served) > 1 else served[0])
        found.append(Draws(workload.name, tuple(values)))
    return found


def goodput(
    costs: RoundCosts,
    config: AdaptiveConfig,
    cost_noise: float = 0.0,
    seed: int = 1,
    settings: Settings = DEFAULTS,
) -> GoodputPolicy:
    """Returns the goodput policy as a server starts it, with a cost table seeded from ``costs``.

    Args:
        costs: The true ones.
        config: Its candidate steps count, whatever policy it names.
        cost_noise: Relative error of every period that start-up measured.
        seed: Of these errors.
        settings: What it is tuned with.
    """
    policy = build_policy(
        replace(config, policy="goodput"), config.initial_steps(None), settings=settings
    )
    assert isinstance(policy, GoodputPolicy)
    seed_table(policy.costs, costs, noise=cost_noise, seed=seed)
    return policy


def _costs(question: Question) -> tuple[RoundCosts, tuple[int, ...], str]:
    """Returns the true costs, the steps to replay with them, and where they come from."""
    name = question.costs or DEFAULT_EXAMPLE
    if name in EXAMPLES:
        example = ExampleCosts(name)
        return example, STEPS, example.origin
    table = read_table(Path(name))
    chains = [tier.num_steps for tier in table.tiers if tier.topk == 1]
    return table, tuple(sorted(chains)), name


def _chains_of(name: str) -> AdaptiveConfig:
    """Returns a config that names no trees: traces say what chains accepted."""
    config = load_config(name)
    trees = [tier.label for tier in config.tiers if tier.topk > 1]
    if trees:
        raise SimulateError(
            f"{config.source}: candidate_tiers has the tree {trees[0]}, and traces know chains "
            "only; allowed: candidate_steps; fix: simulate a config without trees."
        )
    return config


def _shipped(steps: Sequence[int]) -> AdaptiveConfig:
    """Returns the default config less the steps that have no costs: a server left them out."""
    config = load_config(None)
    missing = [tier for tier in config.tiers if tier.num_steps not in steps]
    if len(missing) == len(config.tiers):
        raise SimulateError(
            f"the round times are those of {', '.join(map(str, steps))} steps, and the default "
            f"config has none of them; allowed: {', '.join(map(str, config.candidate_steps))}; "
            "fix: name a config with --config, or other costs."
        )
    return config.on(config.ladder.without(missing))


def _workloads(question: Question, max_steps: int) -> list[Workload]:
    golden = {**golden_workloads(), **changing_workloads()}
    names = question.golden or ([] if question.traces else [ALL])
    if ALL in names:
        names = list(golden_workloads())
    unknown = [name for name in names if name not in golden]
    if unknown:
        raise SimulateError(
            f"there is no golden trace {unknown[0]!r}; allowed: {', '.join(golden)}, {ALL}; "
            "fix: name one of them, or a file with --trace."
        )
    workloads: list[Workload] = [
        RecordedWorkload(read_trace(path), max_steps) for path in question.traces
    ]
    return [*workloads, *(replace(golden[name], max_steps=max_steps) for name in names)]
