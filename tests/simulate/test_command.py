"""`sglang-adaptive-spec simulate`: what it prints, what it refuses."""

import json
from functools import cache
from pathlib import Path

import pytest

from sglang_adaptive_spec.cli import main
from sglang_adaptive_spec.config.schema import load_config
from sglang_adaptive_spec.policy import settings as settings_module
from sglang_adaptive_spec.policy.costs.cache import CostKey, cost_file, save
from sglang_adaptive_spec.policy.costs.table import CostTable
from sglang_adaptive_spec.policy.settings import DEFAULTS, Settings
from sglang_adaptive_spec.simulate.command import STEPS, goodput
from sglang_adaptive_spec.simulate.overrides import HINTS, NOT_REPLAYED, differing, settings_from
from sglang_adaptive_spec.simulate.regret import StaticPolicy
from sglang_adaptive_spec.simulate.replay import Replay
from sglang_adaptive_spec.simulate.synthetic import Phase, SyntheticWorkload, golden_workloads
from sglang_adaptive_spec.simulate.true_costs import ExampleCosts, NoSpeculation, seed_table
from sglang_adaptive_spec.tiers import DecodeBatch, chain_tier
from sglang_adaptive_spec.trace.record import TraceRecorder

POLICY = Path(settings_module.__file__).parent
REPLAYED = [name for name in HINTS if name.partition(".")[0] not in NOT_REPLAYED]
POLICY_SOURCE = "".join(
    path.read_text() for path in POLICY.rglob("*.py") if path.name != "settings.py"
)
SHORT = SyntheticWorkload("short", 1.5, ((0, 4),), (Phase(0, (0.8,)),), mean_tokens=80)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    recorder = TraceRecorder(path, name="short", max_steps=5)
    Replay(StaticPolicy(chain_tier(5)), SHORT, ExampleCosts("flashinfer"), recorder=recorder).run()
    recorder.close()
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["simulate", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_reports_every_arm_beside_the_oracle(
    capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    result = simulated(capsys, "--trace", trace, "--policy", "ema", "--policy", "static-4")
    assert result["costs"] == ExampleCosts("fa3").origin
    (report,) = result["traces"]
    arms = {arm["name"]: arm for arm in report["arms"]}
    statics = {f"static-{steps}" for steps in (*STEPS, 4)}
    assert set(arms) == {"ema", "none", "oracle", *statics}
    best = max((arm for arm in arms.values() if arm["name"] in statics), key=tokens_per_s)
    assert report["best_static"] == best["name"]
    assert report["oracle_tokens_per_s"] == max(tokens_per_s(arms["oracle"]), tokens_per_s(best))
    for arm in arms.values():
        share = tokens_per_s(arm) / report["oracle_tokens_per_s"]
        assert arm["share_of_oracle"] == pytest.approx(share)
    assert arms["static-4"]["num_switches"] == 0
    assert list(arms["static-4"]["rounds_by_steps"]) == ["4"]
    assert tokens_per_s(arms["none"]) > tokens_per_s(arms["static-0"])


def arm_of(result: dict, name: str) -> dict:
    (report,) = result["traces"]
    return next(arm for arm in report["arms"] if arm["name"] == name)


def tokens_per_s(arm: dict) -> float:
    return arm["tokens_per_s"]


def test_goodput_reports_its_probes(capsys: pytest.CaptureFixture[str]) -> None:
    (report,) = simulated(capsys, "--golden", "steady-low-64", "--policy", "goodput")["traces"]
    (goodput,) = (arm for arm in report["arms"] if arm["name"] == "goodput")
    # At two steps they serve 0.9 of what zero steps serve: what they lose is not all their time.
    assert 0 < goodput["probing"]["loss_share"] < 0.5 * goodput["probing"]["time_share"]
    assert goodput["probing"]["time_share"] <= 0.01
    assert all(arm["probing"] is None for arm in report["arms"] if arm["name"] != "goodput")


def test_a_config_limits_the_steps_of_goodput(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"1": {"candidate_steps": [1, 2]}}')
    (report,) = simulated(capsys, "--trace", trace, "--policy", "goodput", "--config", str(config))[
        "traces"
    ]
    (goodput,) = (arm for arm in report["arms"] if arm["name"] == "goodput")
    assert set(goodput["rounds_by_steps"]) <= {"1", "2"}


def cost_cache(tmp_path: Path, steps: tuple[int, ...]) -> str:
    """Saves the example's costs as a server would, for some steps only."""
    tiers = tuple(map(chain_tier, steps))
    key = CostKey(
        gpu="H200",
        model="target",
        draft="draft",
        versions={"sglang": "0.5.21"},
        settings={"dtype": "bfloat16"},
        tiers=tuple((tier.num_steps, tier.topk, tier.num_draft_tokens) for tier in tiers),
    )
    assert save(key, seed_table(CostTable.empty(tiers), ExampleCosts("fa3")), tmp_path)
    return str(cost_file(key, tmp_path))


def test_an_example_may_be_named(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    result = simulated(capsys, "--trace", trace, "--policy", "static-3", "--costs", "flashinfer")
    assert result["costs"] == ExampleCosts("flashinfer").origin != ExampleCosts("fa3").origin


def test_the_costs_of_a_server_stand_in_for_the_example(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    costs = cost_cache(tmp_path, (0, 1, 3, 5))
    mine = simulated(capsys, "--trace", trace, "--policy", "goodput", "--costs", costs)
    example = simulated(capsys, "--trace", trace, "--policy", "goodput")
    assert mine["costs"] == costs
    rows = {arm["name"]: tokens_per_s(arm) for arm in mine["traces"][0]["arms"]}
    assert "static-7" not in rows
    others = {arm["name"]: tokens_per_s(arm) for arm in example["traces"][0]["arms"]}
    for name in ("static-0", "static-3", "none"):
        assert rows[name] == pytest.approx(others[name], rel=0.02)


def test_the_table_has_a_row_per_arm(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    assert main(["simulate", "--trace", trace]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(idx for idx, line in enumerate(lines) if line.startswith("policy"))
    rows = [line.split()[0] for line in lines[head + 1 :]]
    assert rows == ["goodput", "ema", *(f"static-{steps}" for steps in STEPS), "none", "oracle"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--golden", "steady-hi"], "there is no golden trace 'steady-hi'; allowed: steady-high-1"),
        (["--policy", "best"], "there is no policy 'best'; allowed: goodput, ema, static-N"),
        (["--trace", "gone.jsonl"], "gone.jsonl, line 1: cannot be read"),
        (["--costs", "gone.json"], "gone.json holds no costs"),
        (["--config", "gone.json"], "gone.json"),
        (["--set", "switch_z"], "--set got 'switch_z'; allowed: GROUP.NAME=VALUE"),
        (["--set", "choice.switch_y=1"], "no setting 'choice.switch_y'; allowed: those of policy"),
        (["--set", "switch_z=1"], "the nearest are choice.switch_z, "),
        (["--set", "trees.lift_prior=1"], "trees.lift_prior has no part in a replay"),
        (["--set", "run_length.window=9"], "its zero-step rounds run one decode each; allowed"),
        (["--set", "choice.switch_z="], "choice.switch_z is ''; allowed: a finite number from 0"),
        (["--set", "choice.switch_z=inf"], "choice.switch_z is 'inf'; allowed: a finite number"),
        (["--set", "costs.own_spread=nan"], "allowed: a finite number above 0, by default 0.05"),
        (["--set", "probing.share=1"], "allowed: a finite number above 0 below 1, by default 0.01"),
        (["--set", "cadence.fresh_rounds=0"], "allowed: a whole number from 1, by default 4"),
        (["--set", "cadence.fresh_rounds=2.5"], "cadence.fresh_rounds is '2.5'"),
        (["--set", "choice.switch_z=2", "--policy", "ema"], "the policies are ema"),
        (["--draws", "0", "--set", "choice.switch_z=2"], "--draws is 0; allowed: 1 or more"),
        (["--draws", "-1"], "--draws is -1; allowed: 1 or more"),
    ],
)
def test_a_wrong_name_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["simulate", *arguments]) == 1
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""


def test_settings_change_what_goodput_does_and_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = ("--golden", "steady-low-64", "--policy", "goodput")
    as_tuned = simulated(capsys, *question)
    assert as_tuned["settings"] == {}
    changed = simulated(
        capsys, *question, "--set", "probing.share=0.1", "--set", "probing.share=0.05"
    )
    assert changed["settings"] == {"probing.share": 0.05}
    shares = [arm_of(result, "goodput")["probing"]["time_share"] for result in (as_tuned, changed)]
    assert shares[0] <= 0.01 < shares[1] <= 0.05


def test_a_setting_at_its_default_changes_nothing(
    capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    question = ("--trace", trace, "--policy", "goodput")
    assert simulated(capsys, *question) == simulated(
        capsys, *question, "--set", "choice.switch_z=1"
    )


def test_the_text_names_settings_with_their_default(
    capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    assert main(["simulate", "--trace", trace, "--set", "costs.least_z=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["setting: costs.least_z is 2, by default 1.5", ""]


def test_changed_settings_are_compared_with_the_defaults(
    capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    question = ("--trace", trace, "--policy", "goodput", "--set", "acceptance.prior_hazard=0.02")
    result = simulated(capsys, *question, "--draws", "2")
    first, second = result["over_default"]["short"]
    served = arm_of(result, "goodput")["tokens_per_s"]
    usual = arm_of(simulated(capsys, *question[:4]), "goodput")["tokens_per_s"]
    assert first == pytest.approx(served / usual)
    assert first < 1.0
    assert main(["simulate", *question, "--draws", "2"]) == 0
    mean = (first * second) ** 0.5
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "over the default settings, draws of the cost noise: 2",
        f"{'short':<18} {mean:.4f}  ({min(first, second):.4f} to {max(first, second):.4f})",
        f"geometric mean {mean:.4f}, lowest {mean:.4f} (short)",
    ]


def test_draws_alone_say_what_goodput_serves(
    capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    """So commits can be compared as settings are."""
    question = ("--trace", trace, "--policy", "goodput", "--draws", "2", "--cost-noise", "0.2")
    result = simulated(capsys, *question)
    first, second = result["draws"]["short"]
    assert result["over_default"] == {}
    assert first == arm_of(result, "goodput")["tokens_per_s"] != second
    assert main(["simulate", *question]) == 0
    mean = (first * second) ** 0.5
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "goodput, tokens/s, draws of the cost noise: 2",
        f"{'short':<18} {mean:.1f}  ({min(first, second):.1f} to {max(first, second):.1f})",
        f"geometric mean {mean:.1f}",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "acceptance.prior_hazard=0.3",
        "costs.slow_rate=0.5",
        "choice.max_cost_noise=0.5",
        "cadence.decision_rounds=32",
        "probing.settled_rounds=0",
    ],
)
def test_every_group_reaches_what_uses_it(text: str) -> None:
    assert state_after_a_replay(settings_from([text])) != state_after_a_replay(DEFAULTS)


@cache
def state_after_a_replay(settings: Settings) -> dict:
    policy = goodput(ExampleCosts("flashinfer"), load_config(None), 0.02, settings=settings)
    Replay(policy, golden_workloads()["phases-2s-16"], ExampleCosts("flashinfer")).run()
    return policy.state(DecodeBatch(16, tuple(range(16)), 16_000))


@pytest.mark.parametrize("name", REPLAYED)
def test_every_setting_can_be_set_and_the_policy_names_it(name: str) -> None:
    group, _, field = name.partition(".")
    default = getattr(getattr(DEFAULTS, group), field)
    value = default + 1 if isinstance(default, int) else 1.5 if default == 1 else (default + 1) / 2
    changed = settings_from([f"{name}={value}"])
    assert differing(changed) == {name: (value, default)}
    assert type(getattr(getattr(changed, group), field)) is type(default)
    assert f".{field}" in POLICY_SOURCE


def test_a_config_with_trees_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "trees.json"
    config.write_text('{"policy": "goodput", "1": {"candidate_tiers": [[3, 4, 8]]}}')
    assert main(["simulate", "--config", str(config)]) == 1
    assert "candidate_tiers has the tree 3-4-8, and traces know chains" in capsys.readouterr().err


@pytest.mark.parametrize(("policy", "lacking"), [("static-5", 5), ("ema", 1)])
def test_costs_that_lack_a_step_are_refused(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path, policy: str, lacking: int
) -> None:
    costs = cost_cache(tmp_path, (0, 3))
    assert main(["simulate", "--trace", trace, "--costs", costs, "--policy", policy]) == 1
    assert f"has no costs of {lacking} steps; allowed: 0, 3" in capsys.readouterr().err


def test_costs_of_no_step_of_the_default_config_are_refused(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = cost_cache(tmp_path, (4,))
    assert main(["simulate", "--trace", trace, "--costs", costs, "--policy", "goodput"]) == 1
    assert "those of 4 steps, and the default config has none of them" in capsys.readouterr().err


def test_seeding_measures_what_is_true() -> None:
    costs, tiers = ExampleCosts("flashinfer"), tuple(map(chain_tier, STEPS))
    table = seed_table(CostTable.empty(tiers), costs)
    for tier in tiers:
        for size in (1, 8, 32, 128):
            assert table.round_ms(tier, size, size * 1000) == pytest.approx(
                costs.round_ms(tier, size, size * 1000), rel=0.02
            )
    plain = NoSpeculation(costs).round_ms(tiers[0], 8, 2048)
    assert table.round_ms(tiers[0], 8, 2048) - table.plain_extra_ms(8, 2048) == pytest.approx(
        plain, rel=0.02
    )
