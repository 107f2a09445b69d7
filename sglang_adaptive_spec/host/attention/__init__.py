"""What attention backends keep for graphs: plans, the index of KV slots, lengths, draft-extends."""
