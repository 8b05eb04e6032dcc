"""Starting described containers for real, the way `run.sh` does it: through a bash script, as an ordinary user."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.containers.description import Container, Mount, User
from launcher.containers.devices import JOB_GPUS, needs_job_gpus
from launcher.containers.runtime import Runtime, Wrapped
from launcher.containers.runtimes import wrap
from launcher.containers.words import to_bash
from tests.testbed.facts import Testbed

PROBE = Path(__file__).with_name("probe.py")
PYTHON = "/usr/bin/python3"
DOCKER = Runtime(kind="docker", command=("docker",))
PODMAN = Runtime(kind="podman", command=("podman",))
APPTAINER = Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4))
CONTAINED = pytest.mark.parametrize("runtime", [DOCKER, PODMAN, APPTAINER], ids=lambda runtime: runtime.kind)

# An image that wants everything otherwise than the job does.
CONTRARY = """
FROM {base}
ENV FROM_IMAGE=image BOTH=image PYTHONNOUSERSITE= HOME=/image CUDA_VISIBLE_DEVICES=7 XDG_CACHE_HOME=/image
USER 12345
WORKDIR /opt
ENTRYPOINT ["/bin/sh", "-c", "echo the entrypoint ran; exit 99"]
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that the testbed's user owns, with what a run has: code, run folder, cache."""

    testbed: Testbed
    folder: Path

    @property
    def user(self) -> User:
        user = self.testbed.user
        return User(uid=user.uid, gid=user.gid, name=user.name, groups=(user.gid,))

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def container(self, image: str, *, code: int = 0, words: tuple[Any, ...] = (), **changes: Any) -> Container:
        """The probe in a container."""
        output = str(self.run / "probe.json")
        container = Container(
            image=image,
            argv=(PYTHON, str(self.code / "probe.py"), output, str(code), *words),
            mounts=(
                Mount(source=str(self.code), target=str(self.code), read_only=True),
                Mount(source=str(self.run), target=str(self.run)),
            ),
            workdir=str(self.code),
            user=self.user,
            cache=str(self.folder / "cache"),
            name=f"{self.folder.name}-{self.testbed.user.uid}",
        )
        return dataclasses.replace(container, **changes)

    def script(self, container: Container, runtime: Runtime, late: Mapping[str, str] | None = None) -> str:
        return script(wrap(container, runtime), container, runtime, late or {})

    def start(
        self, container: Container, runtime: Runtime, late: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        path = self.write("job.sh", self.script(container, runtime, late))
        argv = self.testbed.as_user(["bash", str(path)])
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
        if ended.returncode < 0:  # a signal, as `$?` has it
            ended.returncode = 128 - ended.returncode
        return ended

    def probe(self, container: Container, runtime: Runtime, late: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What the probe found; fails with the container's own words if it found nothing."""
        (self.run / "probe.json").unlink(missing_ok=True)
        ended = self.start(container, runtime, late)
        assert (self.run / "probe.json").exists(), ended.stderr[-3000:]
        seen: dict[str, Any] = json.loads((self.run / "probe.json").read_text())
        return seen | {"exit_code": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        own(path, self.testbed)
        return path


def image_of(runtime: Runtime, testbed: Testbed) -> str:
    """The image with Python, as that runtime takes it."""
    image = testbed.images["python"]
    return {"docker": image.docker, "podman": image.podman, "apptainer": image.sandbox}[runtime.kind]


def script(wrapped: Wrapped, container: Container, runtime: Runtime, late: Mapping[str, str]) -> str:
    """What `run.sh` does around a wrapped command."""
    lines = ["set -u", *(f"export {name}={to_bash(value)}" for name, value in late.items())]
    lines += [JOB_GPUS] if needs_job_gpus(container.devices, runtime.kind) else []
    lines += [f"mkdir -p -m 700 {to_bash(folder)} || exit 1" for folder in wrapped.folders]
    command, outcome, removal = (
        " ".join(map(to_bash, words)) for words in (wrapped.argv, wrapped.outcome, wrapped.remove)
    )
    lines += [f"{removal} >/dev/null 2>&1"] if removal else []
    lines += [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    lines += [f"cd {to_bash(container.workdir)} || exit 1"]
    if outcome:
        lines += ["trap : TERM", command, "code=$?", f"outcome=$({outcome} 2>/dev/null) && code=${{outcome:-$code}}"]
        lines += [f"{removal} >/dev/null 2>&1", 'exit "$code"']
    else:
        lines += [f"exec {command}"]
    return "\n".join(lines) + "\n"


def make_place(testbed: Testbed, folder: Path) -> Place:
    place = Place(testbed=testbed, folder=folder)
    for path in (folder, place.code, place.run):
        path.mkdir()
        own(path, testbed)
    shutil.copy(PROBE, place.code)
    (place.code / "probe.py").chmod(0o644)
    return place


def own(path: Path, testbed: Testbed) -> None:
    os.chown(path, testbed.user.uid, testbed.user.gid)


def contrary_of(runtime: Runtime, testbed: Testbed) -> str:
    """The contrary image, for Docker and podman, and as Apptainer converts it. Made once for a testbed."""
    if runtime.kind == "podman":
        return _built(testbed, "podman", testbed.images["python"].podman, "localhost/")
    name = _built(testbed, "docker", testbed.images["python"].docker, "")
    if runtime.kind == "docker":
        return name
    digest = hashlib.sha256((name + testbed.images["python"].sandbox).encode()).hexdigest()[:8]
    folder = Path(testbed.shared) / f"contrary-{digest}"
    if not folder.exists():
        aside = f"{folder}.{os.getpid()}"
        argv = [testbed.apptainer, "build", "--sandbox", aside, f"docker-daemon:{name}"]
        subprocess.run(testbed.as_user(argv), check=True, capture_output=True, cwd=testbed.shared)
        os.rename(aside, folder)
    return str(folder)


def _built(testbed: Testbed, engine: str, base: str, prefix: str) -> str:
    text = CONTRARY.format(base=base)
    name = f"{prefix}testbed-contrary:{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def run(*words: str, **more: Any) -> int:
        argv = testbed.as_user([engine, *words], {"DOCKER_BUILDKIT": "0"})
        return subprocess.run(argv, capture_output=True, cwd="/", **more).returncode

    if run("image", "inspect", name):
        run("build", "-q", "-t", name, "-", input=text.encode(), check=True)
    return name
