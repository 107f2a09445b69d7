"""The user's adaptive_spec.json: its schema, and one sentence for every mistake."""
