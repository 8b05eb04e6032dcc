"""Podman for the ordinary user, without root: Debian's own, told to do with what a confined machine lets it have."""

from __future__ import annotations

import os
from pathlib import Path

from tests.testbed import docker, images, user
from tests.testbed.bed import Bed, output_of, run, write

ON_PATH = Path("/usr/local/bin/podman")
QUEUES = Path("/dev/mqueue")
IMAGE = "localhost/testbed-python:local"

# runc, since crun 1.8 sets limits that need a capability. Events go into a file: there may be no journal.
CONFIGURATION = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = []
"""
STORAGE = """[storage]
driver = "overlay"
runroot = "{folder}/run"
graphroot = "{folder}/root"
rootless_storage_path = "{folder}/$USER"
[storage.options.overlay]
mount_program = "/usr/bin/fuse-overlayfs"
"""
# It waits until the process that watches its container is gone, twenty seconds long where PID 1 reaps nobody.
CLIENT = """#!/bin/sh
export CONTAINERS_CONF={folder}/containers.conf CONTAINERS_STORAGE_CONF={folder}/storage.conf
exec /usr/bin/tini -s -- /usr/bin/podman "$@"
"""


def client(bed: Bed) -> Path:
    return bed.folder / "podman" / "podman"


def up(bed: Bed) -> str:
    folder = bed.part("podman")
    write(folder / "containers.conf", CONFIGURATION)
    write(folder / "storage.conf", STORAGE.format(folder=folder))
    write(client(bed), CLIENT.format(folder=folder), 0o755)
    account = user.account()
    assert account
    own = folder / user.NAME
    own.mkdir(exist_ok=True)
    os.chown(own, account.pw_uid, account.pw_gid)
    done = []
    if not ON_PATH.exists():
        ON_PATH.unlink(missing_ok=True)  # a link whose testbed is gone
        ON_PATH.symlink_to(client(bed))
        done.append(f"linked from {ON_PATH}")
    if not os.path.ismount(QUEUES):
        # Containers that share the host's IPC see its message queues, which systemd would have mounted.
        QUEUES.mkdir(exist_ok=True)
        run(["mount", "-t", "mqueue", "mqueue", QUEUES], log=bed.log("podman"))
        done.append(f"mounted {QUEUES}")
    return ", ".join(done) or "all there"


def make_image(bed: Bed) -> str:
    """The Python image, in the ordinary user's storage."""
    label = '{{index .Labels "testbed"}}'
    if (output_of(_as_user("image", "inspect", "--format", label, IMAGE)) or "").strip() == images.RECIPE:
        return "all there"
    docker.import_root(bed, images.sandbox(bed, "python"), _as_user("import"), IMAGE, images.RECIPE)
    return "made"


def _as_user(*words: str) -> list[str]:
    account = user.account()
    assert account
    change = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
    who = [f"HOME={account.pw_dir}", f"USER={user.NAME}", f"LOGNAME={user.NAME}"]
    return [*change, "env", "--chdir=/", *who, str(ON_PATH), *words]
