"""Reuse of tuned programs (ETO) against searching each operator: python -m benchmarks.reuse."""
