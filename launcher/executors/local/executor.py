"""This machine as a submitit executor."""

from __future__ import annotations

from launcher.executors.base import PlanExecutor


class LocalExecutor(PlanExecutor):
    """Starts runs now, each in a session of its own that outlives the launcher; the runs of a batch run in turn."""

    kind = "local"

    @classmethod
    def name(cls) -> str:
        return "direct"  # as AutoExecutor(cluster="direct"); submitit's own executor is "local"

    @classmethod
    def affinity(cls) -> int:
        return 0  # available everywhere, and chosen by name only
