"""This machine as a place for runs: a session of processes each, started now."""
