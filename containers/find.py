"""The container runtimes and images of a host. `ask` runs commands there, so any host can be probed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amp_launcher.typed import SettingsError
from launcher.containers.runtime import Kind, Runtime

Ask = Callable[[Sequence[str]], str | None]
"""Runs an argument list on the host: its standard output, or None if it failed or isn't installed."""

# Codes in the header of a SIF file, at byte 45.
_SIF_ARCHITECTURES = {"01": "386", "02": "amd64", "03": "arm", "04": "arm64", "05": "ppc64", "06": "ppc64le"}
_CUDA = re.compile(r"^(?:export )?CUDA_VERSION=[^0-9\n]*(\d+(?:\.\d+)*)", re.MULTILINE)
"""As NVIDIA's images set it, in the image's configuration and in Apptainer's copy of it."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalImage:
    """An image as a host has it."""

    name: str
    present: bool
    identity: str = ""
    """The digest of an engine's own record of it, which changes whenever the image does; empty for files."""
    architecture: str = ""
    """As registries write it: `amd64`, `arm64`; empty where the format does not say."""
    cuda: str = ""
    """Version of the CUDA toolkit that it declares, as `12.4.1`; empty without one."""


def installed(ask: Ask) -> dict[str, Runtime]:
    """Every runtime that the host has, by kind."""
    runtimes = {kind: find(ask) for kind, find in _FINDERS.items()}
    return {kind: runtime for kind, runtime in runtimes.items() if runtime is not None}


def version(text: str) -> tuple[int, ...]:
    """The first dotted number in a program's output."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def architecture(ask: Ask) -> str:
    """The host's own, as registries write it."""
    machine = (ask(["uname", "-m"]) or "").strip()
    return _MACHINES.get(machine, machine)


def find_image(name: str, runtime: Runtime, ask: Ask) -> LocalImage:
    """The image of that name as this runtime would start it. Pyxis fetches missing images, so it is not asked."""
    if runtime.kind in ("docker", "podman"):
        return _engine_image(name, runtime, ask)
    if runtime.kind == "apptainer":
        return _image_file(name, runtime, ask)
    return LocalImage(name=name, present=True)


def check_image(image: LocalImage, wanted: str, host_architecture: str, kind: Kind) -> None:
    """Refuse a missing image or one for another architecture. `wanted` is the user's name for it."""
    if not image.present:
        if image.name.startswith("/"):
            raise SettingsError(f"image={wanted} is not on this host; there is no such file or folder")
        whose = "this user's own podman" if kind == "podman" else kind
        command = f"{kind} pull {image.name}" if kind != "apptainer" else f"python -m launcher image pull {wanted}"
        message = f"image={wanted} is not on this host: {whose} has no {image.name}; `{command}` fetches it"
        raise SettingsError(message, "image")
    if image.architecture and host_architecture and image.architecture != host_architecture:
        raise SettingsError(f"image={wanted} is made for {image.architecture} and this host is {host_architecture}")


def _docker(ask: Ask) -> Runtime | None:
    client = ask(["docker", "--version"])
    if client is None:
        return None
    options = ask(["docker", "info", "--format", "{{json .SecurityOptions}}"])
    problem = "" if options else "its engine does not answer; is it running, and may this user use it?"
    return Runtime(
        kind="docker",
        command=("docker",),
        version=version(client),
        rootless="name=rootless" in (options or ""),
        problem=problem,
        gpu_problem=_toolkit_problem(ask),
    )


def _podman(ask: Ask) -> Runtime | None:
    client = ask(["podman", "--version"])
    if client is None:
        return None
    described = ask(["sh", "-c", "ls /etc/cdi /var/run/cdi 2>/dev/null | grep nvidia"])
    lacking = "no CDI specification of its GPUs is in /etc/cdi; `nvidia-ctk cdi generate` writes one"
    return Runtime(
        kind="podman", command=("podman",), version=version(client), gpu_problem="" if described else lacking
    )


def _apptainer(ask: Ask) -> Runtime | None:
    for program in ("apptainer", "singularity"):
        text = ask([program, "--version"])
        if text is not None:
            # A program called singularity may be Apptainer, and then reads Apptainer's variables.
            product = "apptainer" if "apptainer" in text else "singularity"
            return Runtime(kind="apptainer", command=(program,), product=product, version=version(text))
    return None


def _pyxis(ask: Ask) -> Runtime | None:
    text = ask(["srun", "--help"])
    return Runtime(kind="pyxis", command=("srun",)) if text and "--container-image" in text else None


_FINDERS: dict[Kind, Callable[[Ask], Runtime | None]] = {
    "docker": _docker,
    "podman": _podman,
    "apptainer": _apptainer,
    "pyxis": _pyxis,
}


def _toolkit_problem(ask: Ask) -> str:
    if ask(["sh", "-c", "command -v nvidia-container-runtime-hook || command -v nvidia-ctk"]):
        return ""
    return "the NVIDIA container toolkit is not installed, which Docker needs to give GPUs to containers"


def _engine_image(name: str, runtime: Runtime, ask: Ask) -> LocalImage:
    text = ask([*runtime.command, "image", "inspect", name])
    if text is None:
        return LocalImage(name=name, present=False)
    (image,) = json.loads(text)
    return LocalImage(
        name=name,
        present=True,
        identity=image["Id"],
        architecture=image["Architecture"],
        cuda=_cuda("\n".join((image.get("Config") or {}).get("Env") or [])),
    )


def _image_file(path: str, runtime: Runtime, ask: Ask) -> LocalImage:
    if ask(["test", "-e", path]) is None:
        return LocalImage(name=path, present=False)
    header = ask(["sh", "-c", 'test -f "$1" && head -c 47 "$1" | tail -c 15', "sh", path]) or ""
    architecture = _SIF_ARCHITECTURES.get(header[-2:], "unknown") if header.startswith("SIF_MAGIC") else ""
    cuda = _cuda(ask([*runtime.command, "inspect", "--environment", path]) or "")
    return LocalImage(name=path, present=True, architecture=architecture, cuda=cuda)


def _cuda(environment: str) -> str:
    """The toolkit's version without NVIDIA's build number behind the third dot."""
    match = _CUDA.search(environment)
    return ".".join(match[1].split(".")[:3]) if match else ""
