"""Policies: units, properties, and the differential test against the host."""
