"""Qwen2.5-Coder-1.5B-Instruct: large enough that the GPU limits a round."""
