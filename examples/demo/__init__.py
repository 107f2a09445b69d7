"""The demo: one model pair, four servers, the same prompts; see docs/demo.md."""
