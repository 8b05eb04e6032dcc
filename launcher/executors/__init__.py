"""Submission: submitit executors over backends that start, look and cancel, here and on Slurm."""
