"""Tests; a package, so that they share `tests.hosts` and may repeat file names."""
