"""What the tests need to know of the testbed: `status --json` prints it, and the pytest plugin hands it out."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.testbed import accounting, apptainer, docker, images, munge, podman, slurm, sshd, user
from tests.testbed.bed import LOOPBACK, SYSTEM_PATH, Bed, TestbedError, wait_until
from tests.testbed.processes import running

SERVERS = (munge.NAME, accounting.DATABASE, accounting.DAEMON, *slurm.SERVERS, *sshd.SERVERS, *docker.SERVERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm:
    conf: str  # for SLURM_CONF
    conf_without_accounting: str  # the same cluster, as seen where there is no sacct
    account: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    host: str
    port: int
    bastion_port: int
    user: str
    key: str
    known_hosts: str
    config: str  # ssh -F; knows testbed, testbed-root, testbed-bastion and testbed-jump


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    docker: str
    podman: str  # in the ordinary user's storage; empty where there is none
    sif: str
    sandbox: str


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    """The testbed as it was when asked for, and what tests may do to it."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    folder: str
    shared: str  # both nodes see it and everyone may write
    python: str  # an interpreter with torch that the ordinary user can run, outside containers
    slurm: Slurm
    ssh: Ssh
    apptainer: str  # the program; also on the PATH, in /usr/local/bin
    images: dict[str, Image]
    user: User
    environment: dict[str, str]  # what a shell needs to talk to all of it
    servers: dict[str, int | None]  # pid, or None where it is not running

    @property
    def up(self) -> bool:
        return None not in self.servers.values()

    def plain(self) -> dict[str, Any]:
        return {"up": self.up} | asdict(self)

    def slurm_env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment, with the cluster's in place of any other's."""
        foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return kept | self.environment | dict(extra or {})

    def as_user(self, argv: Sequence[str], extra: Mapping[str, str] | None = None) -> list[str]:
        """The command for running `argv` as the ordinary user, in an environment such as a login gives."""
        user = self.user
        values = {"PATH": SYSTEM_PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "LANG": "C.UTF-8"}
        values |= self.environment | dict(extra or {})
        change = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups"]
        return [*change, "env", "-i", *(f"{name}={value}" for name, value in values.items()), *argv]

    def kill(self, server: str, number: int = signal.SIGKILL) -> None:
        """Send a server a signal, as a fault does it; returns once a killed one is gone. `revive` starts it again."""
        process = running(Bed(Path(self.folder)), server)
        if process is None:
            raise TestbedError(f"{server} is not running (servers: {', '.join(SERVERS)})")
        process.send(number)
        if number == signal.SIGKILL:
            wait_until(lambda: not process.alive, 10)

    def revive(self) -> None:
        """Start every server that is not running, and wait until the nodes take jobs again."""
        from tests.testbed import parts

        parts.revive(Bed(Path(self.folder)))


def session(bed: Bed) -> dict[str, str]:
    """What a site's login scripts would set."""
    return slurm.environment(bed) | docker.environment(bed)


def gather(bed: Bed) -> Testbed | None:
    """What there is, or None where the testbed was never brought up whole."""
    account = user.account()
    ports = bed.ports()
    if account is None or not ports or not images.interpreter(bed).exists():
        return None
    processes = {name: running(bed, name) for name in SERVERS}
    return Testbed(
        folder=str(bed.folder),
        shared=str(bed.shared),
        python=str(images.interpreter(bed)),
        slurm=Slurm(
            conf=str(slurm.configuration(bed)),
            conf_without_accounting=str(slurm.configuration_without_accounting(bed)),
            account=slurm.ACCOUNT,
            nodes=slurm.NODES,
        ),
        ssh=Ssh(
            host=LOOPBACK,
            port=ports[sshd.LOGIN],
            bastion_port=ports[sshd.BASTION],
            user=user.NAME,
            key=str(bed.folder / "ssh" / "id_ed25519"),
            known_hosts=str(bed.folder / "ssh" / "known_hosts"),
            config=str(bed.folder / "ssh" / "config"),
        ),
        apptainer=str(apptainer.program(bed)),
        images={
            name: Image(
                docker=images.docker_name(name),
                podman=podman.IMAGE if name == "python" else "",
                sif=str(images.sif(bed, name)),
                sandbox=str(images.sandbox(bed, name)),
            )
            for name in images.NAMES
        },
        user=User(name=user.NAME, uid=account.pw_uid, gid=account.pw_gid, home=account.pw_dir),
        environment=session(bed),
        servers={name: process.pid if process else None for name, process in processes.items()},
    )
