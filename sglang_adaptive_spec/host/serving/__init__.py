"""Each round: the worker, and the zero-step round that it replaces."""
