"""The training loop that all frameworks share: steps, checkpoints, metrics, proof and result."""
