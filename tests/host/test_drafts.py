"""What a draft's config says it is: EAGLE's, EAGLE-3's, another algorithm's, a whole model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive_spec.config.schema import ConfigError
from sglang_adaptive_spec.host.launch.options import options_of
from tests.host.test_arguments import arguments, resolved

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.mark.parametrize(
    ("draft", "base"),
    [
        ("eagle", "EAGLE"),
        ("eagle3", "EAGLE3"),
        ("plain_head", "EAGLE"),  # one layer
        ("whole_mtp", "EAGLE"),  # the host loads the MTP layer alone
        ("target", "EAGLE"),  # the draft is inside the target
        ("whole", "STANDALONE"),
    ],
)
def test_the_draft_says_which_algorithm_serves_it(
    models: dict[str, str], draft: str, base: str
) -> None:
    from sglang_adaptive_spec.host.launch.drafts import base_of_draft

    assert base_of_draft(arguments(models, draft)) == base


def test_the_targets_own_path_may_be_spelled_in_another_way(models: dict[str, str]) -> None:
    from sglang_adaptive_spec.host.launch.drafts import base_of_draft

    path = models["whole"]
    for spelled in (f"{path}/", f"{path}/../whole"):
        same = arguments(models, model_path=path, speculative_draft_model_path=spelled)
        assert base_of_draft(same) == "EAGLE"


def test_a_whole_model_drafts_adaptively(models: dict[str, str]) -> None:
    server_args, options = resolved(arguments(models, "whole"))
    assert (options.base, options.mode) == ("STANDALONE", "adaptive")
    assert server_args.speculative_algorithm == "STANDALONE"


def test_a_whole_model_of_another_vocabulary_is_refused(models: dict[str, str]) -> None:
    server_args = arguments(models, "other_vocabulary")
    with pytest.raises(ConfigError) as caught:
        server_args.resolve_once()
    message = str(caught.value)
    assert message.startswith(f"--speculative-draft-model-path {models['other_vocabulary']}: ")
    assert "of 480 tokens; allowed: the target's, of" in message
    assert options_of(server_args) is None, "nothing was written"


def test_a_token_map_is_refused_beside_a_whole_model(models: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--speculative-token-map map\.pt: given beside a whole"):
        arguments(models, "whole", speculative_token_map="map.pt").resolve_once()


def test_what_is_taken_for_a_whole_model_is_said(
    models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    arguments(models, "whole").resolve_once()
    assert "LlamaForCausalLM with 4 layers): STANDALONE. If it is an EAGLE draft" in caplog.text


def test_a_base_of_whole_models_needs_one(models: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "adaptive_spec.json"
    config.write_text(json.dumps({"base": "STANDALONE", "1": {"candidate_steps": [0, 2]}}))
    alone = {"speculative_draft_model_path": None, "speculative_adaptive_config": str(config)}
    with pytest.raises(ConfigError, match="not given; allowed: a whole model"):
        arguments(models, **alone).resolve_once()


def of_a_table(tmp_path: Path, **slot: Any) -> dict[str, Any]:
    """Arguments of a config whose base is NGRAM."""
    config = tmp_path / "adaptive_spec.json"
    config.write_text(json.dumps({"base": "NGRAM", "policy": "goodput", "1": slot}))
    return {"speculative_adaptive_config": str(config)}


def test_a_table_drafts_without_a_model(models: dict[str, str], tmp_path: Path) -> None:
    asked = of_a_table(tmp_path, candidate_steps=[0, 1, 7])
    server_args = arguments(models, speculative_draft_model_path=None, **asked)
    view, options = resolved(server_args)
    assert (options.base, options.mode) == ("NGRAM", "adaptive")
    assert (view.speculative_algorithm, view.speculative_num_draft_tokens) == ("NGRAM", 8)


def test_a_table_switches_beside_a_target_whose_own_draft_could_not(
    models: dict[str, str], tmp_path: Path
) -> None:
    asked = of_a_table(tmp_path, candidate_steps=[0, 1])
    table = {"speculative_draft_model_path": None, "model_path": models["index_share_target"]}
    _, options = resolved(arguments(models, **table, **asked))
    assert options.static_reason is None


@pytest.mark.parametrize(
    ("draft", "slot", "words"),
    [
        ("eagle", {"candidate_steps": [0, 1]}, "given beside base NGRAM; allowed: no draft model"),
        (None, {"candidate_tiers": [[3, 4, 8]]}, "the table itself says where"),
    ],
)
def test_a_table_takes_no_model_and_no_shape_of_trees(
    models: dict[str, str], tmp_path: Path, draft: str | None, slot: Any, words: str
) -> None:
    path = {"speculative_draft_model_path": None if draft is None else models[draft]}
    with pytest.raises(ConfigError, match=words):
        arguments(models, **path, **of_a_table(tmp_path, **slot)).resolve_once()


def test_a_table_is_refused_on_a_pd_decode_node(models: dict[str, str], tmp_path: Path) -> None:
    asked = of_a_table(tmp_path, candidate_steps=[0, 1])
    node = {"speculative_draft_model_path": None, "disaggregation_mode": "decode"}
    with pytest.raises(ConfigError, match="--disaggregation-mode decode: given beside base NGRAM"):
        arguments(models, **node, **asked).resolve_once()


def test_sglangs_own_relay_takes_no_request_of_another_node_under_ngram() -> None:
    """What the refusal is for; gone with it, if this passes."""
    from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    relay: Any = object.__new__(FutureMap)
    relay.spec_algo, relay.accept_tokens_buf = SpeculativeAlgorithm.NGRAM, None
    relay.req_pool_size, relay.device = 4, "cpu"
    with pytest.raises(AttributeError, match="shape"):
        relay.stash(torch.tensor([1]), RelayPayload(bonus_tokens=torch.tensor([7])))


@pytest.mark.parametrize(("draft", "algorithm"), [("dflash", "DFLASH"), ("dspark", "DSPARK")])
def test_a_draft_of_another_algorithm_is_refused_with_its_name(
    models: dict[str, str], draft: str, algorithm: str
) -> None:
    with pytest.raises(ConfigError, match=rf"drafts for {algorithm}; .* {algorithm}\.$"):
        arguments(models, draft).resolve_once()


def test_the_config_key_base_overrules_what_the_draft_looks_like(
    models: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "adaptive_spec.json"
    config.write_text(json.dumps({"base": "EAGLE", "1": {"candidate_steps": [0, 2]}}))
    for draft in ("whole", "dflash"):
        _, options = resolved(arguments(models, draft, speculative_adaptive_config=str(config)))
        assert (options.base, options.mode) == ("EAGLE", "adaptive")


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM"])
def test_another_algorithm_is_sglangs_own(models: dict[str, str], algorithm: str) -> None:
    draft: dict[str, Any] = {"speculative_draft_model_path": models["whole"]}
    if algorithm == "NGRAM":
        draft["speculative_draft_model_path"] = None
    server_args = arguments(models, speculative_algorithm=algorithm, **draft)
    server_args.resolve_once()
    assert options_of(server_args) is None


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM", "DFLASH", "DSPARK", "EAGLE", None])
def test_the_plugin_hands_any_other_algorithm_on(algorithm: str | None) -> None:
    from sglang_adaptive_spec.host.registration import _resolve_once

    asked = SimpleNamespace(speculative_algorithm=algorithm)
    assert _resolve_once(lambda given: (given, vars(given).copy()), asked) == (asked, vars(asked))


@pytest.mark.parametrize("num_nodes", [2, 8, 16, 25])
def test_a_tables_requests_reserve_no_more_slots_than_sglangs_own(
    models: dict[str, str], tmp_path: Path, num_nodes: int
) -> None:
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_context

    asked = of_a_table(tmp_path, candidate_steps=[0, num_nodes - 1])
    ours = arguments(models, speculative_draft_model_path=None, **asked)
    plain = arguments(
        models,
        speculative_algorithm="NGRAM",
        speculative_draft_model_path=None,
        speculative_num_draft_tokens=num_nodes,
    )
    reserved = []
    for server_args in (ours, plain):
        server_args.resolve_once()
        with get_context().override_server_args():
            get_context().set_server_args(server_args)
            reserved.append(get_alloc_reserve_per_decode())
    assert reserved[0] == reserved[1] == 2 * max(num_nodes, 10)  # a table's breadth is 10


def test_a_table_that_cannot_switch_keeps_the_users_nodes(
    models: dict[str, str], tmp_path: Path
) -> None:
    asked = of_a_table(tmp_path, candidate_steps=[0, 1, 7])
    user = {"speculative_num_draft_tokens": 16, "disaggregation_mode": "prefill"}
    server_args = arguments(models, speculative_draft_model_path=None, **asked, **user)
    view, options = resolved(server_args)
    assert options.mode == "static"
    assert (view.speculative_num_draft_tokens, view.speculative_num_steps) == (16, 16 // 10)
