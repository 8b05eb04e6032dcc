"""What an image's Python can import. An image is started for that only where a run is submitted, and once: the answer
is kept in `STATE/launcher/images/`, a small file for each image."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from launcher.config import job_environment
from launcher.containers import find
from launcher.containers.find import Ask, LocalImage
from launcher.containers.runtime import Runtime
from launcher.probe import pythons
from launcher.runs import run_roots, store

_VERSION = re.compile(r"[\w.+!-]{1,64}", re.ASCII)


def _ask_as_a_job(argv: Sequence[str]) -> str | None:
    # What else a shell holds, such as APPTAINER_BIND, would act on this start and not on the job.
    return find.ask_here(argv, job_environment.of_place(os.environ))


def look(
    image: LocalImage, runtime: Runtime, python: str, *, start: bool, ask: Ask = _ask_as_a_job
) -> tuple[dict[str, str] | None, str]:
    """Package -> version of what the image's Python can import, of `pythons.PACKAGES`; None where that isn't known, and
    then why. The image may be started if `start`: without GPUs, the user's mounts and the user's environment, by a
    runtime that gets the variables that a job's gets. Docker and Podman give it no network; Apptainer would need root
    for that, and leaves it the host's.
    """
    if runtime.kind == "pyxis":
        return None, "Slurm fetches it on the node"
    if not image.present:
        return None, "it is not on this host yet"
    kept = _record(image, runtime, python)
    if kept is not None and (known := _read(kept)) is not None:
        return known, ""
    if not start:
        return None, "a plan starts no image; `run` looks into it before anything is queued"
    versions = _versions(ask(_command(image, runtime, python)) or "")
    if versions is None:
        return None, f"{python} could not be run in it"
    if kept is not None:
        _write(kept, versions)
    return versions, ""


def _command(image: LocalImage, runtime: Runtime, python: str) -> list[str]:
    # Isolated (-I), for a job has neither the image's PYTHONPATH nor the user's packages.
    inside = [image.name, python, "-I", "-c", pythons.TELL]
    if runtime.kind == "apptainer":
        return [*runtime.command, "exec", "--cleanenv", "--containall", "--no-home", "--pwd=/", *inside]
    alone = ["--rm", "--pull=never", "--network=none", "--log-driver=none", "--entrypoint="]
    return [*runtime.command, "run", *alone, *inside]


def _versions(text: str) -> dict[str, str] | None:
    """From the output of `pythons.TELL`, which a foreign program wrote; None for another text."""
    python, packages = pythons.told(text)
    if not _VERSION.fullmatch(python):
        return None
    return _known(packages)


def _known(packages: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in packages.items() if _VERSION.fullmatch(version)}


def _record(image: LocalImage, runtime: Runtime, python: str) -> Path | None:
    """Where its packages are kept; None for an image that may change without notice, as a sandbox does."""
    identity = image.identity
    if runtime.kind == "apptainer":
        status = os.stat(image.name)
        if not stat.S_ISREG(status.st_mode):
            return None
        identity = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    key = "\0".join((runtime.kind, identity, python, pythons.TELL))
    return Path(run_roots.state_folder(), "images", f"{hashlib.sha256(key.encode()).hexdigest()}.json")


def _read(path: Path) -> dict[str, str] | None:
    values = store.read_or_empty(path).get("packages")
    if not isinstance(values, dict):
        return None
    return _known({name: str(values[name]) for name in pythons.PACKAGES if name in values})


def _write(path: Path, packages: dict[str, str]) -> None:
    try:
        run_roots.make_private(path.parent)
        store.write_json(path, {"schema": 1, "packages": packages})
    except OSError:
        return  # a home that can't be written to: the image is started again next time
