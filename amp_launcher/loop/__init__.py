"""The training loop that all recipes share: steps, checkpoints, metrics, proof and result."""
