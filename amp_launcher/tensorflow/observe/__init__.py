"""What a training step in TensorFlow really ran: executed graphs, XLA's programs, shapes and FLOPs."""
