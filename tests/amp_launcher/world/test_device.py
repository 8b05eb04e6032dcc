"""What every framework's device has in common, with a stand-in for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from amp_launcher.world import device
from amp_launcher.world.device import Device


class Fake(Device):
    waits = 0

    def wait(self) -> None:
        self.waits += 1

    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        return []

    allocated = 7

    def gpu_memory(self) -> int:
        return self.allocated

    def reset_gpu_memory(self) -> None:
        self.allocated = 1

    def gpu_name(self) -> str:
        return "NVIDIA H100"

    def where(self) -> str:
        return ""

    def framework_versions(self) -> dict[str, str | None]:
        return {"fake": "1.0"}


def test_a_mark_and_peak_memory_are_the_gpus() -> None:
    gpu, cpu = Fake("cuda"), Fake("cpu")
    assert gpu.seconds(gpu.mark(), gpu.mark()) >= 0 and cpu.seconds(cpu.mark(), cpu.mark()) >= 0
    assert cpu.seconds(100.0, 102.5) == 2.5
    assert (gpu.waits, cpu.waits) == (2, 0)
    assert gpu.peak_memory() == 7 < 2**20 < cpu.peak_memory()


def test_peak_memory_begins_anew() -> None:
    gpu, cpu = Fake("cuda"), Fake("cpu")
    large = bytearray(2**28)
    before = cpu.peak_memory()
    del large
    gpu.reset_peak_memory()
    cpu.reset_peak_memory()
    assert gpu.peak_memory() == 1
    assert cpu.peak_memory() < before - 2**27


def test_the_result_names_gpu_driver_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "nvidia_driver", lambda: "550.54")
    monkeypatch.setattr(device, "processor", lambda: "Xeon")
    assert Fake("cuda").hardware() == {"gpu": "NVIDIA H100", "uuid": None, "driver": "550.54", "cpu": "Xeon"}
    assert Fake("cpu").hardware() == {"gpu": None, "uuid": None, "driver": None, "cpu": "Xeon"}
    assert {"python", "numpy", "fake"} == set(Fake("cpu").versions())
