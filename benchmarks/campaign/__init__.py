"""The parts of `benchmarks/gpu.py`. They need torch and `recipes/`, nothing of the launcher."""
