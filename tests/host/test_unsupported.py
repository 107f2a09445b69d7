"""Each setting that rules out switching is a reason alone; which backends draft no trees."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("plugins_loaded")


@pytest.mark.parametrize("backend", ["flashinfer", "flashmla", "trtllm_mla"])
@pytest.mark.parametrize("flag", ["attention_backend", "speculative_draft_attention_backend"])
def test_which_backends_draft_chains_only_depends_on_mla(
    monkeypatch: pytest.MonkeyPatch, flag: str, backend: str
) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    view = SimpleNamespace(**dict.fromkeys(unsupported.ATTENTION_FLAGS))
    setattr(view, flag, backend)
    monkeypatch.setattr(unsupported, "resolved_view", lambda server_args: view)
    for is_mla in (False, True):
        monkeypatch.setattr(unsupported, "use_mla_backend", lambda server_args, it=is_mla: it)
        refusal = unsupported.tree_refusal(None)
        assert (f"{backend} drafts chains only on MLA" in str(refusal)) is is_mla
    setattr(view, flag, "triton")
    assert unsupported.tree_refusal(None) is None


SETTINGS = {
    "pp_size": (1, 2, "pp_size=2"),
    "disaggregation_mode": ("null", "prefill", "disaggregation_mode=prefill"),
    "enable_pdmux": (False, True, "PD multiplexing"),
    "enable_hisparse": (False, True, "HiSparse"),
    "elastic_ep_backend": (None, "mooncake", "elastic expert parallelism"),
    "enable_lora": (False, True, "LoRA"),
    "lora_paths": (None, ["a=b"], "LoRA"),
    "enable_deterministic_inference": (False, True, "deterministic"),
    "enable_two_batch_overlap": (False, True, "two-batch"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_that_rules_out_switching_is_a_reason_alone(name: str) -> None:
    from sglang_adaptive_spec.host.launch import unsupported

    harmless = {setting: values[0] for setting, values in SETTINGS.items()}
    assert unsupported._reason(harmless.__getitem__) is None
    _, harmful, words = SETTINGS[name]
    assert words in str(unsupported._reason({**harmless, name: harmful}.__getitem__))


def test_attention_dp_is_a_reason_of_the_hosts() -> None:
    from sglang_adaptive_spec.host.launch.unsupported import adaptive_unsupported_reason

    view = SimpleNamespace(
        enable_dp_attention=True, speculative_algorithm="EAGLE", speculative_eagle_topk=1
    )
    assert "enable_dp_attention" in str(adaptive_unsupported_reason(view))


def test_beside_trees_the_hosts_other_reasons_still_count() -> None:
    from sglang_adaptive_spec.host.launch.unsupported import _AsChains, adaptive_unsupported_reason

    settings = dict.fromkeys(
        ("enable_dp_attention", "enable_multi_layer_eagle", "enable_two_batch_overlap"), False
    )
    view = SimpleNamespace(
        **settings, enable_pdmux=False, speculative_algorithm="EAGLE", speculative_eagle_topk=4
    )
    assert adaptive_unsupported_reason(_AsChains(view)) is None
    for name in settings:
        setattr(view, name, True)
        reason = adaptive_unsupported_reason(_AsChains(view))
        assert name in str(reason)
        setattr(view, name, False)
