"""Which tiers earn their place on this traffic, and what adaptive_spec.json should say."""
