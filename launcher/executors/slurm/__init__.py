"""The Slurm backend: its jobs, its shared answer and its submitit executor."""
