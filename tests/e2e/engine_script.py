"""Runs sgl.Engine with ADAPTIVE_EAGLE; the last line of its output is the answer as JSON.

A script of its own, since the Engine spawns its processes from the main module.
"""

import json
import sys
from typing import Any

import sglang


def main(question: dict[str, Any]) -> None:
    engine = sglang.Engine(
        **question["settings"],
        speculative_algorithm="ADAPTIVE_EAGLE",
        device="cpu",
        attention_backend="intel_amx",
        dtype="float32",
        mem_fraction_static=0.5,
        disable_cuda_graph=True,
        max_total_tokens=8192,
        max_running_requests=8,
        context_length=1024,
        random_seed=1,
    )
    try:
        before = engine.get_server_info()["internal_states"][0]["adaptive_spec"]
        sampling = {
            "temperature": 0,
            "max_new_tokens": question["num_tokens"],
            "ignore_eos": True,
            **question.get("sampling", {}),
        }
        replies = engine.generate(question["prompts"], sampling)
        after = engine.get_server_info()["internal_states"][0]["adaptive_spec"]
    finally:
        engine.shutdown()
    answer = {
        "before": before,
        "after": after,
        "output_ids": [reply["output_ids"] for reply in replies],
    }
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
