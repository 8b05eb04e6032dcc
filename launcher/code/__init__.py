"""The code that runs: what goes along, and the snapshot that it is kept in."""
