"""The GPUs that a job sees, as options of each runtime. A job of one GPU never sees two.

| devices | apptainer | docker | podman | pyxis |
| --- | --- | --- | --- | --- |
| no GPU on the host | - | - | - | - |
| none of the host's | CUDA_VISIBLE_DEVICES= | NVIDIA_VISIBLE_DEVICES=void | the same | both |
| listed | CUDA_VISIBLE_DEVICES=2,3, and --nv | --gpus "device=2,3" | --device nvidia.com/gpu=2 .. | the job's |
| the job's | what Slurm set, and --nv | --gpus of SLURM_STEP_GPUS | --device of the same | what Slurm set |

Docker and podman renumber the devices from 0 inside, so CUDA_VISIBLE_DEVICES is not passed on. They also ignore the
cgroup of a Slurm job, so they get exactly its devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.containers.description import Devices
from launcher.containers.words import EnvArg, EnvArgs, Word

VARIABLE = "LAUNCHER_GPUS"

# Run first on a node of a Slurm job whose container has devices "job" with Docker or podman. SLURM_JOB_GPUS can be
# empty in a step that srun started by itself.
JOB_GPUS = rf"""
{VARIABLE}=${{SLURM_STEP_GPUS:-${{SLURM_JOB_GPUS:-}}}}
if [[ ! ${VARIABLE} =~ ^[0-9A-Za-z-]+(,[0-9A-Za-z-]+)*$ ]]; then
  echo "Slurm names no GPUs of this job (SLURM_STEP_GPUS and SLURM_JOB_GPUS: '${VARIABLE}')" >&2
  exit 1
fi
""".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Visibility:
    """Arguments of the client and variables of the job that make the devices visible."""

    flags: tuple[Word, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()


def visibility(devices: Devices, kind: str) -> Visibility:
    """The devices for a runtime of this kind."""
    if devices is None:
        return Visibility()
    if kind in ("docker", "podman"):
        return _renumbered(devices, kind)
    flags = ("--nv",) if kind == "apptainer" and devices else ()
    own = {"NVIDIA_VISIBLE_DEVICES": "all" if devices else "void"} if kind == "pyxis" else {}
    if devices == "job":
        return Visibility(flags=flags, environment=own, passed=("CUDA_VISIBLE_DEVICES",))
    return Visibility(flags=flags, environment={**own, "CUDA_VISIBLE_DEVICES": ",".join(devices)})


def needs_job_gpus(devices: Devices, kind: str) -> bool:
    """Whether the arguments for these devices use `VARIABLE`, which `JOB_GPUS` sets."""
    return devices == "job" and kind in ("docker", "podman")


def _renumbered(devices: Devices, kind: str) -> Visibility:
    assert devices is not None
    if not devices:
        # NGC images request all devices in their environment, which NVIDIA's default runtime would obey.
        return Visibility(environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    if devices == "job":
        if kind == "docker":
            # The quotes are for Docker, which parses the value as a line of CSV.
            return Visibility(flags=(EnvArg(VARIABLE, '--gpus="device=', '"'),))
        return Visibility(flags=(EnvArgs(VARIABLE, "--device=nvidia.com/gpu="),))
    if kind == "docker":
        return Visibility(flags=(f'--gpus="device={",".join(devices)}"',), environment=_order(devices))
    return Visibility(flags=tuple(f"--device=nvidia.com/gpu={gpu}" for gpu in devices), environment=_order(devices))


def _order(devices: tuple[str, ...]) -> dict[str, str]:
    """The engines number the devices in bus order; CUDA restores another order inside."""
    if not all(gpu.isdecimal() for gpu in devices):
        return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if len(devices) > 1 else {}
    by_bus = sorted(devices, key=int)
    if list(devices) == by_bus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(by_bus.index(gpu)) for gpu in devices)}
