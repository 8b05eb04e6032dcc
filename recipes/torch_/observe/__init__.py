"""What a training step in torch really ran: dispatched operations, compiled graphs, the profiler's audit, FLOPs."""
