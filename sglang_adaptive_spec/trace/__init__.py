"""A trace of decode rounds: its format, and what records it. Standard library only."""
