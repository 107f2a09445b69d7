"""End to end: the real SGLang server on the CPU host, compared with no speculation."""
