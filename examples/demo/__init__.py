"""The demo: one model pair, six servers, the same prompts; see docs/demo.md."""
