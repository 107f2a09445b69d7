"""The demo: one model pair, five servers, the same prompts; see docs/demo.md."""
