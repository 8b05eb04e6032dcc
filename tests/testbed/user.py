"""An ordinary user to submit, log in and run containers as, and the node names that both nodes resolve to."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from tests.testbed.bed import LOOPBACK, Bed, run

NAME = "rehearsal"
HOSTS = Path("/etc/hosts")
MARK = "# the testbed's nodes and controller"


def account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(NAME)
    except KeyError:
        return None


def ensure(bed: Bed, hosts: tuple[str, ...]) -> str:
    """Make the user, their home and the shared folder where missing; what was done."""
    done = []
    if account() is None:
        # A password of `*` is none at all; useradd's own `!` would make sshd refuse keys too.
        argv = ["useradd", "--no-create-home", "--home-dir", bed.folder / "home", "--shell", "/bin/bash"]
        run([*argv, "--password", "*", NAME], log=bed.log("user"))
        done.append("made the user")
    user = account()
    assert user
    home = Path(user.pw_dir)
    if not home.exists():
        shutil.copytree("/etc/skel", home)
        for path in [home, *home.rglob("*")]:
            os.chown(path, user.pw_uid, user.pw_gid)
        home.chmod(0o700)
        done.append("made the home")
    bed.shared.mkdir(exist_ok=True)
    bed.shared.chmod(0o1777)
    if _name_hosts(hosts):
        done.append("named the hosts in /etc/hosts")
    return ", ".join(done) or "all there"


def _name_hosts(hosts: tuple[str, ...]) -> bool:
    """Node names resolve on every real cluster, and torchrun is given one as its rendezvous host."""
    line = f"{LOOPBACK} {' '.join(hosts)} {MARK}"
    text = HOSTS.read_text()
    if line in text.splitlines():
        return False
    kept = [other for other in text.splitlines() if MARK not in other]
    # In place: inside a container the file is a mount of its own and can't be renamed over.
    HOSTS.write_text("\n".join([*kept, line]) + "\n")
    return True
