"""Apptainer for Debian 12, which has none: Debian's unstable package, unpacked beside the newer C library it wants.

Nothing of the system is upgraded. The package is unpacked into the testbed's folder, and its two programs are told to
use the unpacked loader and C library; every other library is the system's own. A build without setuid looks for its
parts relative to itself, so that it works from any folder once `etc` and `var` lie below its prefix.
"""

from __future__ import annotations

import platform
import shutil
import stat
from pathlib import Path

from tests.testbed import sources
from tests.testbed.bed import Bed, TestbedError, output_of, remove_folder, run, write

SUITE = "unstable"
ON_PATH = Path("/usr/local/bin/apptainer")
FUSE = Path("/dev/fuse")


def program(bed: Bed) -> Path:
    return bed.folder / "apptainer" / "usr" / "bin" / "apptainer"


def up(bed: Bed) -> str:
    done = []
    if not program(bed).exists():
        _make(bed)
        done.append("unpacked")
    if not ON_PATH.exists():
        ON_PATH.unlink(missing_ok=True)  # a link whose testbed is gone
        ON_PATH.symlink_to(program(bed))
        done.append(f"linked from {ON_PATH}")
    if not FUSE.exists():
        raise TestbedError(f"{FUSE} is missing: the kernel has no FUSE, which SIF images of ordinary users need")
    if stat.S_IMODE(FUSE.stat().st_mode) != 0o666:
        FUSE.chmod(0o666)  # as udev leaves it on an ordinary machine
        done.append(f"opened {FUSE}")
    return ", ".join(done) or "all there"


def _make(bed: Bed) -> None:
    log = bed.log("apptainer")
    final = bed.folder / "apptainer"
    folder = bed.folder / "apptainer.new"
    remove_folder(folder)
    debs = _download(bed, folder, ("apptainer", "libc6"))
    for name in ("apptainer", "libc6"):
        run(["dpkg-deb", "--extract", next(debs.glob(f"{name}_*.deb")), folder / name], log=log)
    unpacked = folder / "apptainer"
    for name in ("etc", "var"):
        shutil.move(unpacked / name, unpacked / "usr" / name)
    loader = next((folder / "libc6").glob("usr/lib/*/ld-linux-*.so.*"))
    # The paths written into the programs are those after the rename below.
    libraries = final / loader.parent.relative_to(folder)
    programs = [unpacked / "usr/bin/apptainer", *unpacked.glob("usr/lib/*/apptainer/bin/starter")]
    if len(programs) != 2:
        raise TestbedError(f"the apptainer package has no starter where it used to be: see {unpacked}")
    for path in programs:
        argv = ["patchelf", "--set-interpreter", libraries / loader.name, "--force-rpath", "--set-rpath", libraries]
        run([*argv, path], log=log)
    # The starter takes its prefix from a place that is one folder higher on a Debian without multiarch folders.
    for name, target in {"bin": "../bin", "etc": "../etc", "var": "../var", "lib": "."}.items():
        (unpacked / "usr/lib" / name).symlink_to(target)
    shutil.move(unpacked / "usr", folder / "usr")
    remove_folder(unpacked)
    remove_folder(debs.parent)
    remove_folder(final)
    folder.rename(final)
    if output_of([str(program(bed)), "--version"]) is None:
        run([program(bed), "--version"], log=log)


def _download(bed: Bed, folder: Path, packages: tuple[str, ...]) -> Path:
    """Packages of the unstable suite, checked against Debian's keys by an apt that has lists and state of its own."""
    own = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial", "state", "debs", "empty"):
        (own / name).mkdir(parents=True)
    write(own / "state" / "status", "")
    mirror = sources.mirror(sources.codename())
    write(own / "sources.list", f"deb [signed-by={sources.KEYRING}] {mirror.uri} {SUITE} main\n")
    values = {
        "Dir::State": own / "state",
        "Dir::State::lists": own / "lists",
        "Dir::State::status": own / "state" / "status",
        "Dir::Cache": own / "cache",
        "Dir::Etc::sourcelist": own / "sources.list",
        "Dir::Etc::sourceparts": own / "empty",
        "Dir::Etc::preferencesparts": own / "empty",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    write(own / "apt.conf", "".join(f'{key} "{value}";\n' for key, value in values.items()))
    env = {"APT_CONFIG": str(own / "apt.conf")}
    log = bed.log("apptainer")
    run(["apt-get", "-q", "update"], log=log, env=env)
    # `env -C`: apt-get download knows no other folder than the current one.
    run(["env", "-C", own / "debs", "apt-get", "-q", "download", *packages], log=log, env=env)
    if platform.machine() != "x86_64":
        raise TestbedError(f"Apptainer was tried on x86_64 only, and this is {platform.machine()}")
    return own / "debs"
