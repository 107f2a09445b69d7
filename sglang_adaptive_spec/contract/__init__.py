"""What of SGLang is used, and whether a release still has it. Imports no sglang."""
