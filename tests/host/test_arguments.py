"""ADAPTIVE_EAGLE becomes EAGLE at the largest tier, or static EAGLE with the user's own steps."""

import io
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive_spec.config.schema import ConfigError
from sglang_adaptive_spec.host.launch.options import AdaptiveOptions, options_of
from sglang_adaptive_spec.policy.build import build_policy
from sglang_adaptive_spec.tiers import DecodeBatch, Tier, chain_tier
from tests.hosts import REPO

Numbers = tuple[int | None, int | None, int | None]
TIER_FIELDS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")

pytestmark = pytest.mark.usefixtures("plugins_loaded")


def arguments(models: dict[str, str], draft: str = "eagle", **changes: Any) -> Any:
    from sglang.srt.server_args import ServerArgs

    fields: dict[str, Any] = {
        "model_path": models["target"],
        "device": "cpu",
        "attention_backend": "intel_amx",
        "disable_cuda_graph": True,
        "max_running_requests": 8,
        "mem_fraction_static": 0.05,
        "speculative_algorithm": "ADAPTIVE_EAGLE",
        "speculative_draft_model_path": models[draft],
    }
    return ServerArgs(**{**fields, **changes})


def numbers(given: Numbers) -> dict[str, int | None]:
    return dict(zip(TIER_FIELDS, given, strict=True))


def resolved(server_args: Any) -> tuple[Any, AdaptiveOptions]:
    from sglang.srt.arg_groups.overrides import resolved_view

    server_args.resolve_once()
    options = options_of(server_args)
    assert options is not None
    return resolved_view(server_args), options


@pytest.mark.parametrize(("draft", "base"), [("eagle", "EAGLE"), ("eagle3", "EAGLE3")])
def test_the_base_is_found_from_the_draft_and_resolution_runs_at_the_largest_tier(
    models: dict[str, str], draft: str, base: str
) -> None:
    view, options = resolved(arguments(models, draft))
    assert (view.speculative_algorithm, options.base, options.mode) == (base, base, "adaptive")
    assert view.speculative_num_steps == 10
    assert view.speculative_num_draft_tokens == 11
    assert view.speculative_eagle_topk == 1
    assert view.speculative_adaptive is False
    assert options.initial_steps == 3  # the middle of 0, 1, 2, 3, 5, 7, 10


def test_the_config_key_base_wins_over_the_drafts_architecture(
    models: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "adaptive_spec.json"
    config.write_text(json.dumps({"base": "EAGLE", "1": {"candidate_steps": [0, 2]}}))
    server_args = arguments(models, "eagle3", speculative_adaptive_config=str(config))
    view, options = resolved(server_args)
    assert view.speculative_algorithm == "EAGLE"
    assert (view.speculative_num_steps, options.initial_steps) == (2, 2)


@pytest.mark.parametrize("name", ["adaptive_eagle", "Adaptive_Eagle"])
def test_the_name_is_case_insensitive_like_the_hosts(models: dict[str, str], name: str) -> None:
    _, options = resolved(arguments(models, speculative_algorithm=name))
    assert options.mode == "adaptive"


def test_zero_steps_alone_still_start_the_host_at_one(
    models: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "plain.json"
    config.write_text('{"policy": "ema", "1": {"candidate_steps": [0]}}')
    view, options = resolved(arguments(models, speculative_adaptive_config=str(config)))
    assert (view.speculative_num_steps, options.initial_steps) == (1, 0)


@pytest.mark.parametrize(
    ("given", "initial"),
    [
        ({"speculative_num_steps": 7}, 7),
        ({"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}, 1),
        ({"speculative_num_draft_tokens": 2}, 1),
        ({"speculative_eagle_topk": 1}, 3),
        ({"speculative_num_steps": 7, "speculative_eagle_topk": 1}, 7),
    ],
)
def test_the_users_steps_and_draft_tokens_are_the_initial_step(
    models: dict[str, str], given: dict[str, int], initial: int
) -> None:
    view, options = resolved(arguments(models, **given))
    assert (options.initial_steps, view.speculative_num_steps) == (initial, 10)
    assert options.config.initial == chain_tier(initial)


@pytest.mark.full  # imports the host anew
def test_arguments_resolved_before_plugins_are_loaded_end_in_the_hosts_own_words(
    models: dict[str, str],
) -> None:
    """In a process of its own: in this one the plugins are loaded."""
    code = f"from tests.host.test_arguments import arguments; arguments({models}).resolve_once()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Unknown speculative algorithm name: ADAPTIVE_EAGLE" in done.stderr


def test_steps_that_are_no_candidate_are_an_error_that_says_so(models: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--speculative-num-steps.*4.*0, 1, 2, 3, 5, 7, 10"):
        arguments(models, speculative_num_steps=4).resolve_once()


def test_draft_tokens_that_contradict_the_steps_are_an_error_that_says_so(
    models: dict[str, str],
) -> None:
    given = {"speculative_num_steps": 3, "speculative_eagle_topk": 1}
    server_args = arguments(models, speculative_num_draft_tokens=8, **given)
    with pytest.raises(ConfigError, match=r"no tier has .*draft-tokens 8; .*\[3, 1, 4\].*drop"):
        server_args.resolve_once()


def test_two_controllers_at_once_are_an_error_that_says_which_to_drop(
    models: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match="drop --speculative-adaptive"):
        arguments(models, speculative_adaptive=True).resolve_once()


TREES = {"1": {"candidate_steps": [0, 5], "candidate_tiers": [[3, 4, 8]]}, "policy": "goodput"}


def test_trees_are_switched_and_resolution_runs_at_the_shape_that_holds_all(
    models: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    view, options = resolved(arguments(models, speculative_adaptive_config=str(config)))
    assert (options.mode, options.static_reason) == ("adaptive", None)
    shape = (
        view.speculative_num_steps,
        view.speculative_eagle_topk,
        view.speculative_num_draft_tokens,
    )
    assert shape == (5, 4, 8) == tuple(options.startup_tier)


@pytest.mark.parametrize(
    ("given", "initial"),
    [
        ({}, (5, 1, 6)),
        ({"speculative_num_steps": 3}, (3, 4, 8)),  # no chain has 3 steps
        ({"speculative_num_draft_tokens": 8}, (3, 4, 8)),
        ({"speculative_num_steps": 5, "speculative_eagle_topk": 1}, (5, 1, 6)),
        (numbers((3, 4, 8)), (3, 4, 8)),
        (numbers((None, 4, None)), (3, 4, 8)),  # the only tree of topk 4
    ],
)
def test_numbers_that_name_a_tier_beside_trees_are_the_tier_to_start_at(
    models: dict[str, str], tmp_path: Path, given: dict[str, int], initial: tuple[int, int, int]
) -> None:
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    server_args = arguments(models, speculative_adaptive_config=str(config), **given)
    _, options = resolved(server_args)
    assert options.initial_steps == initial[0]
    carried = pickle.loads(pickle.dumps(options))
    policy = build_policy(carried.config, carried.initial_steps)
    assert policy.choose(DecodeBatch(1, ("a",))).tier == Tier(*initial)


@pytest.mark.parametrize("given", [(2, 4, 8), (3, 4, 9), (3, 2, 5)])
def test_a_tree_that_the_config_does_not_list_is_served_static(
    models: dict[str, str], tmp_path: Path, given: Numbers
) -> None:
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    named = {"speculative_adaptive_config": str(config), **numbers(given)}
    view, options = resolved(arguments(models, **named))
    assert "fixes one tree" in (options.static_reason or "")
    assert tuple(getattr(view, name) for name in TIER_FIELDS) == given


@pytest.mark.parametrize("topk", [0, -1])
def test_topk_below_1_is_an_error_that_says_so(models: dict[str, str], topk: int) -> None:
    with pytest.raises(ConfigError, match=rf"no tier has .*topk {topk}; allowed: .*; fix: "):
        arguments(models, speculative_eagle_topk=topk).resolve_once()


def test_topk_1_beside_trees_is_an_error_that_says_so(
    models: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    named = {"speculative_adaptive_config": str(config), "speculative_eagle_topk": 1}
    with pytest.raises(ConfigError, match=r"eagle-topk is 1, and .* topk 1, 4; .* drop the flag"):
        arguments(models, **named).resolve_once()
    with pytest.raises(ConfigError, match=r"no tier has --speculative-num-steps 3 and .*topk 1"):
        arguments(models, speculative_num_steps=3, **named).resolve_once()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"speculative_use_rejection_sampling": True}, "eagle-topk=1"),
        ({"page_size": 16}, "page_size > 1 is only supported on"),
    ],
)
def test_trees_that_the_host_refuses_are_an_error_in_the_configs_words(
    models: dict[str, str], tmp_path: Path, setting: dict[str, Any], why: str
) -> None:
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    server_args = arguments(models, speculative_adaptive_config=str(config), **setting)
    with pytest.raises(ConfigError, match="candidate_tiers lists trees") as caught:
        server_args.resolve_once()
    assert why in str(caught.value)
    assert "list chains only" in str(caught.value)


def test_trees_on_a_backend_that_drafts_chains_only_are_an_error(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    monkeypatch.setattr(unsupported, "use_mla_backend", lambda server_args: True)
    monkeypatch.setattr(unsupported, "CHAINS_ONLY_ON_MLA", ("intel_amx",))
    assert resolved(arguments(models))[1].mode == "adaptive"  # chains are fine
    config = tmp_path / "trees.json"
    config.write_text(json.dumps(TREES))
    with pytest.raises(ConfigError, match=r"--attention-backend intel_amx .* use fa3 or triton"):
        arguments(models, speculative_adaptive_config=str(config)).resolve_once()


OVERLAP = {"enable_two_batch_overlap": True}
STATIC = [
    ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, "topk"),
    ({"enable_deterministic_inference": True, "attention_backend": "triton"}, "deterministic"),
    (OVERLAP, "two-batch"),
]


@pytest.mark.parametrize(("setting", "reason"), STATIC)
def test_an_unsupported_setting_serves_the_users_own_static_steps_with_one_warning(
    models: dict[str, str],
    setting: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server_args = arguments(models, speculative_num_steps=3, **setting)
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view, options = resolved(server_args)
    assert options.mode == "static"
    assert reason in (options.static_reason or "")
    assert view.speculative_num_steps == 3
    warnings = [record for record in caplog.records if "static" in record.getMessage()]
    assert len(warnings) == 1


HOSTS_DEFAULT = (5, 4, 8)  # of a Llama, sglang 0.5.20 to 0.5.23 _auto_choose_speculative_params
# One known from the raw arguments, and one that the host's resolution brings up.
FIXED_DEPTH = [OVERLAP, {"draft": "index_share"}]


@pytest.mark.parametrize("setting", FIXED_DEPTH, ids=["raw", "resolved"])
@pytest.mark.parametrize(
    ("given", "served"),
    [
        ((None, None, None), HOSTS_DEFAULT),
        ((None, 1, None), HOSTS_DEFAULT),
        ((None, None, 4), (3, 1, 4)),
        ((None, 1, 4), (3, 1, 4)),
        ((3, None, 4), (3, 1, 4)),
        ((3, 1, None), (3, 1, 4)),
        ((3, 4, 8), (3, 4, 8)),
    ],
)
def test_a_static_server_is_served_with_what_the_given_numbers_leave_open_filled_in(
    models: dict[str, str], setting: dict[str, Any], given: Numbers, served: Numbers
) -> None:
    view, options = resolved(arguments(models, **setting, **numbers(given)))
    assert options.mode == "static"
    assert tuple(getattr(view, name) for name in TIER_FIELDS) == served


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ((0, None, None), "at least 1 step, which is 2 draft tokens"),
        ((None, None, 1), "at least 1 step, which is 2 draft tokens"),
        ((None, 4, None), "a topk above 1 beside --speculative-num-steps and --spec"),
        ((3, 4, None), "a topk above 1 beside --speculative-num-steps and --spec"),
        ((None, 0, None), "--speculative-eagle-topk from 1"),
        ((3, 1, 8), "4 draft tokens (steps + 1) without a topk above 1"),
        ((3, None, 8), "4 draft tokens (steps + 1) without a topk above 1"),
    ],
)
def test_numbers_at_which_a_static_server_cannot_start_are_an_error_that_says_so(
    models: dict[str, str], given: Numbers, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        arguments(models, **OVERLAP, **numbers(given)).resolve_once()
    message = str(caught.value)
    assert message.startswith("static EAGLE (")
    for name, value in zip(TIER_FIELDS, given, strict=True):
        assert (f"--{name.replace('_', '-')} {value}" in message) is (value is not None)
    assert f"; allowed: {allowed}" in message
    assert "; fix: pass such numbers, or drop these flags" in message


@pytest.mark.parametrize(("steps", "expected"), [(2, 2), (None, None)])
def test_a_setting_known_only_after_resolution_gets_the_users_steps_not_the_largest_tier(
    models: dict[str, str], steps: int | None, expected: int | None
) -> None:
    from sglang.srt.arg_groups.overrides import resolved_view

    user = arguments(
        models,
        model_path=models["multi_layer"],
        speculative_num_steps=steps,
        speculative_eagle_topk=1 if steps else None,
        speculative_num_draft_tokens=steps + 1 if steps else None,
        speculative_adaptive_config="host-default" if steps is None else None,
    )
    # 2 is no candidate, which does not matter to a server that cannot switch.
    plain = arguments(
        models,
        model_path=models["multi_layer"],
        speculative_algorithm="EAGLE",
        speculative_num_steps=steps,
        speculative_eagle_topk=1 if steps else None,
        speculative_num_draft_tokens=steps + 1 if steps else None,
    )
    plain.resolve_once()
    user.resolve_once()
    view, plain_view, options = resolved_view(user), resolved_view(plain), options_of(user)
    assert options is not None
    assert "multi" in (options.static_reason or "")
    assert view.enable_multi_layer_eagle is True
    names = ("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens")
    for name in (*names, "speculative_eagle_topk", "max_running_requests"):
        assert getattr(view, name) == getattr(plain_view, name), name


def test_a_draft_that_shares_indices_across_steps_is_served_static(
    models: dict[str, str],
) -> None:
    _, options = resolved(arguments(models, "index_share"))
    assert "indices" in (options.static_reason or "")


def test_the_options_survive_pickling_with_the_arguments(models: dict[str, str]) -> None:
    server_args = arguments(models)
    _, options = resolved(server_args)
    carried = pickle.dumps(server_args)
    assert options_of(pickle.loads(carried)) == options
    # What unpickles it registers the plugin there: no child serves without it.
    assert ("sglang_adaptive_spec.plugin", "restore") in named_by(pickle.dumps(options))


def named_by(carried: bytes) -> set[tuple[str, str]]:
    """Every (module, name) that unpickling looks up."""
    found = set()

    class Lookup(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add((module, name))
            return super().find_class(module, name)

    Lookup(io.BytesIO(carried)).load()
    return found


def test_the_hosts_cap_on_running_requests_is_named_with_its_number(
    models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="sglang_adaptive_spec"):
        view, _ = resolved(arguments(models, max_running_requests=None))
    assert view.max_running_requests == 48
    assert "48" in caplog.text
    assert "--max-running-requests" in caplog.text


def test_another_algorithm_passes_through_untouched(models: dict[str, str]) -> None:
    chain = {"speculative_num_steps": 2, "speculative_eagle_topk": 1}
    server_args = arguments(
        models, speculative_algorithm="EAGLE", speculative_num_draft_tokens=3, **chain
    )
    bookkeeping = set(server_args.__dict__)
    server_args.resolve_once()
    assert options_of(server_args) is None
    assert not any("adaptive" in name for name in set(server_args.__dict__) - bookkeeping)
