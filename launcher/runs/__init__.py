"""The run folder: its owner, ids, JSON records, logs and state."""
