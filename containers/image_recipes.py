"""The images that come with the launcher: one for each framework, one with an SSH server, one without GPUs."""

from __future__ import annotations

import dataclasses

from amp_launcher.typed import SettingsError, nearest
from launcher.containers.images import ImageRecipe

_DIGITS = "scikit-learn==1.5.2"  # holds the small data set that needs no download


def _launched(name: str, words: str) -> dict[str, str]:
    """How a job is started in an image of that name, built from either format."""
    return {
        "docker": f"python -m launcher container=docker image={name} {words}",
        "singularity": f"python -m launcher container=apptainer image=./{name}.sif {words}",
    }


PYTORCH = ImageRecipe(
    name="pytorch",
    summary="NVIDIA's PyTorch image as it is, which has all that training needs",
    base="ngc-pytorch:25.06",
    distribution="ubuntu24",
    run=_launched("pytorch", "amp=o2"),
)
TENSORFLOW = ImageRecipe(
    name="tensorflow",
    summary="NVIDIA's TensorFlow 2 image and the digits data set; the last release, of early 2025",
    base="ngc-tensorflow:25.02",
    distribution="ubuntu24",
    pip=(_DIGITS,),
    run=_launched("tensorflow", "framework=tensorflow amp=o1"),
)
PADDLE = ImageRecipe(
    name="paddle",
    summary="NVIDIA's PaddlePaddle image and the digits data set",
    base="nvcr.io/nvidia/paddlepaddle:24.05-py3",
    distribution="ubuntu22",
    pip=(_DIGITS,),
    run=_launched("paddle", "framework=paddle amp=o1"),
)
INTERACTIVE = dataclasses.replace(
    PYTORCH,
    name="interactive",
    summary="the PyTorch image with an SSH server, for a container that is logged in to; keys only, no passwords",
    apt=("openssh-server", "rsync"),
    commands=(
        "mkdir -p /run/sshd /etc/ssh/sshd_config.d",
        "printf 'PasswordAuthentication no\\nPermitRootLogin prohibit-password\\n' >/etc/ssh/sshd_config.d/10.conf",
        # Every container makes keys of its own; keys in an image would be everybody's.
        "rm -f /etc/ssh/ssh_host_*",
    ),
    # Logins get nothing of the image's variables, CUDA's paths among them, but what /etc/environment has.
    run={
        "docker": "docker run --init --gpus=all -p 52013:22 -v KEYS:/root/.ssh/authorized_keys:ro interactive"
        " sh -c 'ssh-keygen -A && env -u HOME >>/etc/environment && exec /usr/sbin/sshd -D -e'"
    },
)
CPU = ImageRecipe(
    name="cpu",
    summary="Debian's Python with PyTorch for CPUs: small, for tests and for machines without GPUs",
    base="debian:bookworm-slim",
    distribution="ubuntu",
    apt=("ca-certificates", "python3", "python3-pip"),
    pip=("numpy==1.26.4", "scikit-learn==1.4.2", "torch==2.6.0+cpu"),
    index="https://download.pytorch.org/whl/cpu",
    run=_launched("cpu", "device=cpu"),
)
RECIPES = {recipe.name: recipe for recipe in (PYTORCH, TENSORFLOW, PADDLE, INTERACTIVE, CPU)}


def find(name: str) -> ImageRecipe:
    """The recipe of that name. Raises `SettingsError` naming those that there are."""
    if name not in RECIPES:
        raise SettingsError(f"there is no image recipe {name} ({', '.join(RECIPES)}){nearest(name, RECIPES)}", "image")
    return RECIPES[name]
