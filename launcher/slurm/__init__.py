"""Slurm as a place for runs: what it has, what it is asked for, and what it says of a run."""
