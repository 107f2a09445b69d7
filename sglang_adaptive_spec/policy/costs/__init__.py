"""What a round of a tier takes, learned from measured rounds."""
