"""Debian packages: what the testbed needs, installed where missing, with no service of the system's started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.bed import Bed, TestbedError, output_of, run, write

# Needed first, so that the images' root file system can be made while the others install.
TOOLS = ("ca-certificates", "debootstrap", "python3", "python3-pip", "python3-venv")
SERVERS = (
    "munge",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin",
    "mariadb-server-core",  # the server's programs alone: mariadb-server would make a database of its own in /var
    "mariadb-client-core",  # mariadb-install-db runs its my_print_defaults
    "openssh-server",
    "openssh-client",
    "fish",  # login shells that are not bash
    "tcsh",
    "zsh",
    "docker.io",
    "containerd",
    "runc",
    "podman",
    "catatonit",  # the init that podman puts into containers
    "tini",
    "squashfuse",
    "squashfs-tools",
    "fuse2fs",
    "fuse-overlayfs",
    "gocryptfs",  # Apptainer mentions its absence at every start from a SIF file
    "uidmap",
    "libseccomp2",
    "libsqlite3-0",
    "patchelf",
    "rsync",
    "iproute2",
    "procps",
    "util-linux",
    "chromium",  # opens the pages that `report` writes; it fetches nothing, and playwright's own build is not needed
)
POLICY = Path("/usr/sbin/policy-rc.d")


def install(bed: Bed, packages: tuple[str, ...]) -> str:
    """Install those of the packages that are missing; what was done, in words."""
    absent = missing(packages)
    if not absent:
        return "all there"
    log = bed.log("apt")
    if not _known(absent):
        run([*_apt("update"), "-q"], log=log)
    with _no_services():
        try:
            run([*_apt("install"), *absent], log=log)
        except TestbedError:
            # Lists that are days old name files that the mirror no longer has; or an earlier call was cut short.
            run(["dpkg", "--configure", "-a", "--force-confold"], log=log)
            run([*_apt("update"), "-q"], log=log)
            run([*_apt("install"), *absent], log=log)
    still = missing(packages)
    if still:
        raise TestbedError(f"apt-get installed everything but {' '.join(still)}: see {log}")
    return f"installed {len(absent)}"


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those of the packages that are not fully installed."""
    # dpkg-query fails when it knows none of one name, and still prints the others: so take its text either way.
    text = output_of(["sh", "-c", 'dpkg-query -W -f "\\${Package} \\${Status}\\n" "$@" || true', "sh", *packages]) or ""
    installed = {line.split()[0] for line in text.splitlines() if line.endswith("install ok installed")}
    return [name for name in packages if name not in installed]


def _known(packages: list[str]) -> bool:
    """Whether apt's lists on this machine know a version of every package."""
    text = output_of(["apt-cache", "policy", *packages]) or ""
    candidates = [line for line in text.splitlines() if line.startswith("  Candidate:")]
    return len(candidates) == len(packages) and not any("(none)" in line for line in candidates)


def _apt(verb: str) -> list[str]:
    options = ["-o", "DPkg::Lock::Timeout=300"]  # someone else's apt-get may be at work
    if verb == "install":
        # A configuration file that is missing or was changed here is the machine's business: keep it, don't ask.
        options += ["-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
        options += ["-o", "Dpkg::Options::=--force-unsafe-io"]  # a testbed need not survive a power cut
    return ["apt-get", *options, verb]


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Debian's own way to keep packages from starting their services, put back as it was."""
    before = POLICY.read_text() if POLICY.exists() else None
    mode = POLICY.stat().st_mode & 0o777 if before is not None else 0o755
    write(POLICY, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        yield
    finally:
        if before is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(POLICY)
        else:
            write(POLICY, before, mode)
