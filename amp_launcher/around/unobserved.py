"""A user's own script in none of the frameworks: `python -m amp_launcher.around.unobserved amp=o0 script=train.py`.

Nothing is applied around it and nothing of it is observed: it starts, stops, logs and ends as other scripts do.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amp_launcher.around import wrap as shared
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.wrapper import Observer, Started, Wrapper
from amp_launcher.world.device import Device


class Host(Device):
    """The CPU."""

    def wait(self) -> None:
        pass

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        raise NotImplementedError

    def gpu_memory(self) -> int:
        return 0

    def reset_gpu_memory(self) -> None:
        pass

    def gpu_name(self) -> str:
        return ""

    def where(self) -> str:
        return ""

    def framework_versions(self) -> dict[str, str | None]:
        return {}


class NoObserver(Observer):
    """Observes nothing."""

    judge: Callable[[Sequence[dict[str, Any]]], None]
    warn: Callable[[str], None]

    def __init__(self) -> None:
        self.precision = None
        self.reports: list[dict[str, Any]] = []

    def conclude(self) -> None:
        pass


class UnobservedWrapper(Wrapper):
    """`amp_launcher.around.wrapper.Wrapper` without a framework."""

    def __init__(self, started: Started) -> None:
        super().__init__(started, "cpu", None)
        self.device = Host("cpu")
        self.precision = None
        self.observer = NoObserver()

    @contextlib.contextmanager
    def around(self, meter: StepMeter) -> Iterator[None]:
        yield

    def give_way(self) -> None:
        pass

    def unseen(self) -> str:
        return "; it runs in no framework that can be observed (framework=none)"


if __name__ == "__main__":
    sys.exit(shared.main("none", sys.argv[1:], UnobservedWrapper))
