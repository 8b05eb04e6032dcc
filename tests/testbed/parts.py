"""The testbed's parts, what each waits for, and bringing all of them up side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tests.testbed import accounting, apptainer, docker, facts, images, munge, packages, podman, slurm, sshd, user
from tests.testbed.bed import Bed, TestbedError, check_folder
from tests.testbed.processes import names, running, stop


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    after: tuple[str, ...]
    up: Callable[[Bed], str]  # what was done, in words


PARTS = (
    Part("tools", (), lambda bed: packages.install(bed, packages.TOOLS)),
    Part("packages", ("tools",), lambda bed: packages.install(bed, packages.SERVERS)),
    Part("user", ("packages",), lambda bed: user.ensure(bed, (*slurm.NODES, accounting.CONTROLLER_HOST))),
    Part("munge", ("packages",), munge.up),
    Part("accounting", ("munge",), accounting.up),
    Part("slurm", ("accounting", "user"), slurm.up),
    Part("sshd", ("user",), lambda bed: sshd.up(bed, facts.session(bed))),
    Part("docker", ("user",), docker.up),
    Part("podman", ("user",), podman.up),
    Part("apptainer", ("packages",), apptainer.up),
    Part("image python", ("tools",), images.make_python),
    Part("packages of torch", ("tools",), images.make_packages),
    Part("image torch", ("image python", "packages of torch"), images.make_torch),
    Part("sif python", ("image python", "apptainer"), lambda bed: images.make_sif(bed, "python")),
    Part("sif torch", ("image torch", "apptainer"), lambda bed: images.make_sif(bed, "torch")),
    Part("docker python", ("image python", "docker"), lambda bed: images.make_docker(bed, "python")),
    Part("podman python", ("image python", "podman"), podman.make_image),
    Part("docker torch", ("image torch", "docker"), lambda bed: images.make_docker(bed, "torch")),
)
# Parts that only start processes, quickly: what a test calls after it has killed one.
SERVERS = ("munge", "accounting", "slurm", "sshd", "docker")


def up(bed: Bed, say: Callable[[str], None], parts: Sequence[Part] = PARTS) -> None:
    """Bring every part up. Raises `TestbedError` naming each one that failed, after all others were tried."""
    check_folder(bed.folder)
    with bed.locked():
        bed.choose_ports(PORTS, ours=[name for name in names(bed) if running(bed, name)])
        failures = _side_by_side(bed, parts, say)
    if failures:
        raise TestbedError("\n\n".join(f"{name}: {failure}" for name, failure in failures.items()))


def revive(bed: Bed) -> None:
    """Start again whatever server has died."""
    up(bed, say=lambda line: None, parts=[part for part in PARTS if part.name in SERVERS])


def down(bed: Bed, say: Callable[[str], None]) -> None:
    """End every server, by process id. What was made and installed stays, for a quick start next time."""
    with bed.locked():
        ours = [name for name in facts.SERVERS if running(bed, name)]
        slurm.down(bed)
        docker.down(bed)
        for name in reversed(facts.SERVERS):
            stop(bed, name)
    say(f"ended {', '.join(ours)}" if ours else "nothing was running")


PORTS = (accounting.DATABASE, accounting.DAEMON, *slurm.SERVERS, *sshd.SERVERS)


def _side_by_side(bed: Bed, parts: Sequence[Part], say: Callable[[str], None]) -> dict[str, str]:
    """Each part in a thread, once those it waits for have ended; failures by part name."""
    failures: dict[str, str] = {}
    futures: dict[str, Future[None]] = {}

    def one(part: Part) -> None:
        for name in part.after:
            if name in futures:
                futures[name].result()
        if any(name in failures for name in part.after):
            failures[part.name] = f"not tried, because it needs {', '.join(part.after)}"
            return
        began = time.monotonic()
        try:
            done = part.up(bed)
        except (TestbedError, OSError) as error:
            failures[part.name] = done = str(error)
        say(f"{part.name:18} {time.monotonic() - began:6.1f} s  {done.splitlines()[0]}")

    # As many threads as parts: most of them wait for others, so that none may wait for a thread.
    with ThreadPoolExecutor(len(parts)) as pool:
        for part in parts:
            futures[part.name] = pool.submit(one, part)
    for future in futures.values():
        future.result()
    return failures
