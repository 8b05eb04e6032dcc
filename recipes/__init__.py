"""Training jobs. What lies directly here is standard library only; frameworks live in `torch_` and its like."""
