"""Costs, each as a ratio to a baseline that is measured in alternation with it: `python -m benchmarks [NAME]`."""
