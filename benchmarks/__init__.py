"""Measurements: `make bench`, or `python -m benchmarks [NAME ...]`. Results: benchmarks/results/NAME.md.

A benchmark is a function that yields rows, registered with `@benchmark` in a module `benchmarks/bench_<topic>.py`.
"""
