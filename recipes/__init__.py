"""Training jobs to read and to copy, a folder each. `amp_launcher.recipes` is this folder, wherever it is installed."""
