"""The loop around the host's rounds: choose, activate, observe. Neither torch nor sglang."""
