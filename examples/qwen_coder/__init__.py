"""Qwen2.5-Coder-1.5B-Instruct: a real target large enough that a GPU bounds its rounds."""
