"""Submission by submitit executors over backends that start, look and cancel: here, on Slurm, over SSH."""
