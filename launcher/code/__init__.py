"""The code of a run: which files belong to it, and the snapshot of them."""
