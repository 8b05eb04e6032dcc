"""How GPUs are listed, with programs of ours in place of `nvidia-smi` that answer as it does from driver to driver."""

from __future__ import annotations

import os

import pytest

from launcher.probe import gpu_locks, gpu_probing
from launcher.probe.facts import Gpu

UNKNOWN = """case "$1" in *%s*) echo 'Field "%s" is not a valid field to query.'; exit 2;; esac"""
R450 = f"{UNKNOWN}\n" % ("compute_cap", "compute_cap")
R418 = R450 + f"{UNKNOWN}\n" % ("mig.mode.current", "mig.mode.current")


def listed(tmp_path, monkeypatch, program):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/bash\n{program}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return gpu_probing.listed()


@pytest.mark.parametrize(
    ("driver", "row", "memory", "capability"),
    [
        ("418.87.00", f"{R418}echo '0, GPU-a, Tesla V100-SXM2-32GB, 32480, 418.87.00'", 32480, (7, 0)),
        ("450.80.02", f"{R450}echo '0, GPU-a, A100-SXM4-40GB, 40537, 450.80.02, Disabled'", 40537, (8, 0)),
        ("470.82.01", f"{R450}echo '0, GPU-a, NVIDIA GeForce RTX 3090, 24268, 470.82.01, [N/A]'", 24268, (8, 6)),
        ("470.82.01", f"{R450}echo '0, GPU-a, NVIDIA Graphics Device, 24268, 470.82.01, [N/A]'", 24268, None),
        ("535.104.05", "echo '0, GPU-a, Tesla T4, 15360, 535.104.05, 7.5, [N/A]'", 15360, (7, 5)),
        ("550.54.15", "echo '0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0, Disabled'", 81559, (9, 0)),
        ("580.95.05", "echo '0, GPU-a, NVIDIA GB10, [N/A], 580.95.05, 12.1, [N/A]'", 0, (12, 1)),
        (
            "550.54.15",
            "echo '0, GPU-a, NVIDIA L40S, [GPU requires reset], 550.54.15, [Unknown Error], [N/A]'",
            0,
            (8, 9),
        ),
    ],
)
def test_a_gpu_is_listed_under_any_driver(tmp_path, monkeypatch, driver, row, memory, capability):
    (gpu,), problem = listed(tmp_path, monkeypatch, row)
    assert (gpu.index, gpu.uuid, gpu.driver, problem) == (0, "GPU-a", driver, "")
    assert (gpu.memory_mib, gpu.compute_capability, gpu.partitioned) == (memory, capability, False)


@pytest.mark.parametrize("text", ["", "8", "8.x", "².0", "8.0.1"])
def test_a_compute_capability_that_is_no_number_is_unknown(text):
    """As another host may give it."""
    gpu = Gpu(index=0, uuid="GPU-a", name="", memory_mib=0, capability=text, driver="")
    assert gpu.compute_capability is None


@pytest.mark.parametrize("index", ["9" * 5000, "²", "-1"])
def test_a_gpu_whose_number_is_none_is_not_listed(tmp_path, monkeypatch, index):
    """As a driver, or what stands in its place, may print it."""
    row = f"{index}, GPU-a, NVIDIA A100-SXM4-40GB, 40960, 550.54.15, 8.0, Disabled"
    assert listed(tmp_path, monkeypatch, f"echo '{row}'")[0] == ()
    assert gpu_locks.parse([f"{index}|GPU-a||"]) == []


def test_the_memory_of_a_mig_gpu_is_unknown(tmp_path, monkeypatch):
    (gpu,), _ = listed(tmp_path, monkeypatch, "echo '0, GPU-a, NVIDIA A100-SXM4-40GB, 40960, 550.54.15, 8.0, Enabled'")
    assert (gpu.memory_mib, gpu.partitioned) == (0, True)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("echo 'No devices were found'; exit 6", "nvidia-smi failed: No devices were found"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version'; exit 18",
            "nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch NVML library version",
        ),
        (
            "echo 'Unable to determine the device handle for GPU0000:09:00.0: Unknown Error'; exit 255",
            "nvidia-smi failed: Unable to determine the device handle for GPU0000:09:00.0: Unknown Error",
        ),
        ("echo 'Field \"uuid\" is not a valid field to query.'; exit 2", "nvidia-smi failed: Field"),
    ],
)
def test_a_failure_of_nvidia_smi_is_reported(tmp_path, monkeypatch, program, problem):
    gpus, message = listed(tmp_path, monkeypatch, program)
    assert gpus == ()
    assert message.startswith(problem)


def test_a_hanging_driver_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_probing, "_SECONDS", 0.3)
    assert listed(tmp_path, monkeypatch, "exec sleep 60") == ((), "nvidia-smi did not answer within 0.3 s")
