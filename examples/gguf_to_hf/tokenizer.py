"""The tokenizer of a GGUF, whose own is a flat list of tokens."""

from typing import Any

from examples.gguf_to_hf.header import SPECIAL_IDS, Header

CONTROL, USER_DEFINED = 3, 4  # llama.cpp's token types of <|im_start|> and of <tool_call>


def tokenizer_json(header: Header) -> dict[str, Any]:
    """Returns the content of tokenizer.json."""
    tokens, kind = header["tokenizer.ggml.tokens"], header.architecture
    types = map(int, header["tokenizer.ggml.token_type"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": token_id, "content": token, **flags, "special": token_type == CONTROL}
        for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=True))
        if token_type in (CONTROL, USER_DEFINED)
    ]
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": kind.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": kind.pretokenizers},
        "post_processor": None,
        "decoder": {**decoder, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in header["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(header: Header) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json."""
    tokens = header["tokenizer.ggml.tokens"]
    special = header.special_ids(*SPECIAL_IDS)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": tokens[token_id] for name, token_id in special.items()},
        "model_max_length": header.hyperparameter("context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": header["tokenizer.chat_template"],
    }
