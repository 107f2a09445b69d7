"""Serving SGLang for a measurement: servers and fleets of them, arms, models, load."""
