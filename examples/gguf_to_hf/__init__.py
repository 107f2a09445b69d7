"""Converts a GGUF to a Hugging Face folder: bfloat16 safetensors, configuration and tokenizer.

SGLang reads GGUF on GPUs only. Everything comes from the GGUF itself: weights, hyperparameters,
vocabulary, merges, chat template. `architectures.py` has in what its two kinds differ.
"""

from examples.gguf_to_hf.model import convert

__all__ = ["convert"]
