"""Adaptive speculative decoding for SGLang, as a plugin of the unmodified release."""

__version__ = "0.1.0"
