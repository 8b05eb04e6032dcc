"""A Plan to run.sh, pure: one file that a person can read."""
