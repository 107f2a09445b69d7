"""Benchmarks against the real SGLang server: one module per question, results under results/."""
