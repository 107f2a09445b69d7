"""The two kinds of model that the examples convert, and in what the formats differ for each."""

from dataclasses import dataclass, field
from typing import Any

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
# How GPT-4's tokenizer cuts text, digits one by one: Qwen2's (transformers models/qwen2).
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a GGUF of this architecture becomes."""

    hf_class: str
    # llama.cpp stores the rows of query and key projections with rotary halves interleaved.
    has_interleaved_halves: bool
    normalizer: dict[str, str] | None
    pretokenizers: list[dict[str, Any]]  # the text is cut by the first, its pieces by the next
    config: dict[str, Any] = field(default_factory=dict)  # beside what all have
    end_of_text: str | None = None  # ends an answer, too; a GGUF names one token that does


ARCHITECTURES = {
    "llama": Architecture(
        "LlamaForCausalLM",
        has_interleaved_halves=True,
        normalizer=None,
        pretokenizers=[
            {"type": "Digits", "individual_digits": True},
            {**BYTE_LEVEL, "use_regex": True},
        ],
        config={"rope_scaling": None, "attention_bias": False, "mlp_bias": False},
    ),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        has_interleaved_halves=False,
        normalizer={"type": "NFC"},
        pretokenizers=[
            {
                **{"type": "Split", "pattern": {"Regex": QWEN2_WORDS}},
                **{"behavior": "Isolated", "invert": False},
            },
            {**BYTE_LEVEL, "use_regex": False},
        ],
        config={"use_sliding_window": False},
        end_of_text="<|endoftext|>",
    ),
}
