"""What runs inside a training process. What lies directly here is standard library only."""
