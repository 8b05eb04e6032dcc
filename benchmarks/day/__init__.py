"""The first day on a GPU: `python -m benchmarks.gpu day`. Everything that no machine without one can show, in order."""
