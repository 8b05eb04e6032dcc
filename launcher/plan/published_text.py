"""What a command is where it can't run: a published one is text, and reading it takes no GPU and no engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp_launcher.around import script
from launcher.config.schema import LocalCluster
from launcher.config.spec import JobSpec
from launcher.containers.runtime import ALIASES, Runtime
from launcher.probe.facts import ContainerFacts, Facts, Gpu

RUNTIMES: Mapping[str, Runtime] = {
    "docker": Runtime(kind="docker", command=("docker",), version=(28, 0)),
    "podman": Runtime(kind="podman", command=("podman",), version=(4, 0)),
    "apptainer": Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4)),
}


def is_text(spec: JobSpec) -> bool:
    """Whether the job is one command in an image, started as it is: nothing of it depends on the host."""
    launch = spec.launch
    is_in_image = launch.script is not None and script.in_image(launch.script)
    return (
        is_in_image
        and spec.training.train.bare
        and isinstance(launch.cluster, LocalCluster)
        and launch.visible_gpus is None
        and _kind(spec) in RUNTIMES
    )


def equipped(spec: JobSpec, facts: Facts) -> Facts:
    """The same host with the GPUs, the container runtime and the image that the job asks for."""
    kind = _kind(spec)
    gpus = tuple(
        Gpu(index=index, uuid=f"GPU-{index}", name="any", memory_mib=0, capability="", driver="")
        for index in range(1 if spec.launch.gpus is None else spec.launch.gpus)
    )
    known = facts.containers
    # Apptainer's images are files, and one that was never fetched has no name yet.
    image = "/image.sif" if kind == "apptainer" else (known.image if known else "")
    containers = ContainerFacts(
        runtimes={kind: RUNTIMES[kind]},
        architecture="amd64",
        image=image,
        image_present=True,
        image_architecture="amd64",
        uid=known.uid if known else 0,
        gid=known.gid if known else 0,
    )
    return dataclasses.replace(facts, gpus=gpus, gpu_problem="", containers=containers, profilers=())


def _kind(spec: JobSpec) -> str:
    return ALIASES.get(spec.launch.container.kind, spec.launch.container.kind)
