"""Observes training steps in torch: dispatched operations, compiled graphs, the profiler's audit, FLOPs."""
