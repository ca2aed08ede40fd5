"""Longer experiments than benchmarks, whose results are kept in docs/."""
