"""The documentation holds: links resolve, names exist, examples load."""
