"""Offline replay: what would a policy have served on this traffic? Neither torch nor sglang."""
