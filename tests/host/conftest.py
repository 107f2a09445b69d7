"""The real host's ServerArgs on a CPU, in this process: arguments resolve, nothing is served."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
# What makes a draft's sparse attention QSA's.
QSA = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}


def write_model(folder: Path, **overrides: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **overrides}))
    return str(folder)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Config-only models: resolution reads nothing else."""
    root = tmp_path_factory.mktemp("models")
    eagle, eagle3 = ["LlamaForCausalLMEagle"], ["LlamaForCausalLMEagle3"]
    return {
        "target": write_model(root / "target"),
        # The host turns multi-layer EAGLE on for this architecture while it resolves.
        "multi_layer": write_model(
            root / "multi_layer", architectures=["MiMoV2ForCausalLM"], hybrid_layer_pattern=[0, 0]
        ),
        # Whole models: one that drafts under STANDALONE, one that the host takes the MTP layer of.
        "whole": write_model(root / "whole", num_hidden_layers=4),
        "other_vocabulary": write_model(
            root / "other_vocabulary", num_hidden_layers=4, vocab_size=480
        ),
        "whole_mtp": write_model(
            root / "whole_mtp", architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe"
        ),
        # As EAGLE's first heads were published.
        "plain_head": write_model(root / "plain_head", num_hidden_layers=1),
        "dflash": write_model(root / "dflash", architectures=["DFlashDraftModel"]),
        "dspark": write_model(root / "dspark", architectures=["Qwen3DSparkModel"]),
        "eagle": write_model(root / "eagle", architectures=eagle, num_hidden_layers=1),
        "eagle3": write_model(root / "eagle3", architectures=eagle3, num_hidden_layers=1),
        # Its own MTP layer would, if one drafted with it.
        "index_share_target": write_model(
            root / "index_share_target", index_share_for_mtp_iteration=True, **QSA
        ),
        "index_share": write_model(
            root / "index_share",
            architectures=eagle,
            index_share_for_mtp_iteration=True,
            **QSA,
        ),
    }


@pytest.fixture(scope="session")
def plugins_loaded() -> None:
    """Loads the plugins as every entry point of the host does."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
