"""Runnable examples: a small real target and draft, launch configs, and the demo. Not installed."""
