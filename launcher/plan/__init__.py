"""JobSpec and Facts to a Plan, pure: GPUs, container, requirements, advice."""
