"""A host to Facts: its GPUs, Pythons, queue and state, looked at once before planning."""
