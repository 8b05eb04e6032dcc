"""This machine as a submitit executor."""

from __future__ import annotations

from typing import ClassVar

from launcher.executors.base import Parameters, PlanExecutor


class LocalExecutor(PlanExecutor):
    """Starts runs now, each in a session of its own that outlives the launcher; the runs of a batch run in turn."""

    kind = "local"
    PARAMETERS: ClassVar[Parameters] = {"name": "name={}".format, "gpus_per_node": "gpus={}".format}

    @classmethod
    def name(cls) -> str:
        return "direct"  # as AutoExecutor(cluster="direct"); submitit's own executor is "local"

    @classmethod
    def affinity(cls) -> int:
        return 0  # available everywhere, and chosen by name only
