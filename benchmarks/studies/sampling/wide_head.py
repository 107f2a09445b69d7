"""An EAGLE-3 head that proposes the target's whole vocabulary, made from one with a reduced one.

The host's rejection sampling needs a draft distribution over the target's vocabulary and refuses a
reduced one at start (sglang 0.5.21 eagle_worker_v2.py:EagleDraftWorker.alloc_memory_pool). Rows
that the head lacks are taken from the target's output layer, which the head's own began as. How
well they fit changes what is accepted, not what is answered.
"""

import json
from pathlib import Path

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"
REDUCED = ("d2t", "t2d")  # draft ids to target ids and back; without them both are the same


def widen_head(draft: Path, target: Path, folder: Path) -> Path:
    """Writes the wide head to ``folder``; returns it, or ``draft`` if that is wide already."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(draft / WEIGHTS)
    if REDUCED[0] not in weights:
        return draft
    of_target = load_file(target / WEIGHTS)
    tied = of_target.get(HEAD, of_target.get("model.embed_tokens.weight"))
    assert tied is not None, f"{target}: neither {HEAD} nor tied embeddings"
    offsets = weights[REDUCED[0]]
    wide = tied.to(weights[HEAD].dtype, copy=True)
    wide[torch.arange(len(offsets)) + offsets] = weights[HEAD]
    weights[HEAD] = wide
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor for name, tensor in weights.items() if name not in REDUCED}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((draft / "config.json").read_text())
    config["draft_vocab_size"] = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
