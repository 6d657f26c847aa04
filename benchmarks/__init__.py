"""Measurements of this project against itself and others; `python -m benchmarks` runs all of them."""
