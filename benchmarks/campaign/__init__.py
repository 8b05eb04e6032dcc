"""What `benchmarks/gpu.py` measures, part by part. Needs torch and `recipes/`, nothing of the launcher."""
