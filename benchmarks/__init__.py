"""Measurements of the real SGLang server: README.md has one command a study."""
