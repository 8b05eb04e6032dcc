"""What a training step in Paddle really ran: layers, kernels, optimizers."""
