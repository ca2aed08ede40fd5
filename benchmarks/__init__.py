"""Benchmarks of the backend against a baseline; run them with `pytest benchmarks`."""
