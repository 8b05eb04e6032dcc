"""What it costs, each time as a ratio to something measured in turn with it: `python -m benchmarks [NAME]`."""
