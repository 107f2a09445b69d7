"""The only package that imports sglang. Every host symbol used here stands in `contract/`."""
