"""The key of kept round times: whatever sets how long a round takes is part of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive_spec.contract.cost_settings import COST_SETTINGS
from sglang_adaptive_spec.policy.costs.cache import CostKey
from sglang_adaptive_spec.tiers import PLAIN_TIER

CONTEXTS = (16384, 512)


@pytest.fixture
def key_of(plugins_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang_adaptive_spec.host.startup import cost_key

    monkeypatch.setattr(cost_key, "resolved_view", lambda args: args)

    def make(
        draft: dict[str, Any] | None = None, confidence: bool = False, **changes: Any
    ) -> CostKey:
        """Returns the key of a server; ``draft`` changes the draft's config."""
        args = dict.fromkeys(COST_SETTINGS) | {"tp_size": 1, "model_path": "m"}
        args |= {"speculative_draft_model_path": "d", **changes}
        configs = {"dtype": "bf16", "quantization": None}
        target, draft_runner = (
            SimpleNamespace(
                model_config=SimpleNamespace(**config), kv_cache_dtype="bf16", attn_backend=object()
            )
            for config in (configs, configs | (draft or {}))
        )
        engine: Any = SimpleNamespace(
            device="cpu",
            server_args=SimpleNamespace(**args),
            runners=(target, draft_runner),
            options=SimpleNamespace(config=SimpleNamespace(confidence=confidence)),
        )
        return cost_key.cost_key(engine, (PLAIN_TIER,), {2, 1}, CONTEXTS)

    return make


def test_equal_starts_have_one_key(key_of: Any) -> None:
    key = key_of()
    assert key == key_of()
    assert (key.buckets, key.longest_contexts, key.tiers) == ((1, 2), CONTEXTS, ((0, 1, 1),))
    assert "sglang" in key.versions
    assert key != key_of(confidence=True)  # its drafts tell more


@pytest.mark.parametrize(
    "name",
    [
        "quantization",
        "speculative_draft_model_quantization",
        "kv_cache_dtype",
        "ep_size",
        "moe_runner_backend",
        "moe_a2a_backend",
        "sampling_backend",
        "enable_torch_compile",
        "disable_overlap_schedule",
        "revision",
        "speculative_draft_model_revision",
        "speculative_algorithm",
        "speculative_ngram_min_bfs_breadth",
        "speculative_ngram_max_bfs_breadth",
        "speculative_ngram_match_type",
        "speculative_ngram_max_trie_depth",
        "speculative_ngram_external_sam_budget",
    ],
)
def test_another_setting_is_another_key(key_of: Any, name: str) -> None:
    assert key_of().digest != key_of(**{name: "another"}).digest


def test_what_a_checkpoint_decides_is_part_of_the_key(key_of: Any) -> None:
    assert key_of().digest != key_of(draft={"quantization": "fp8"}).digest
