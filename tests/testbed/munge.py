"""munged, with a key and a socket of our own: what proves to Slurm's parts who is asking."""

from __future__ import annotations

import os
import socket

from tests.testbed.bed import Bed
from tests.testbed.processes import Server, ensure

NAME = "munged"


def socket_path(bed: Bed) -> str:
    return str(bed.folder / "munge" / "socket")


def server(bed: Bed) -> Server:
    folder = bed.folder / "munge"
    argv = ["munged", "--foreground", f"--key-file={folder}/key", f"--socket={socket_path(bed)}"]
    argv += [f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed", "--num-threads=10"]
    return Server(name=NAME, argv=tuple(argv), ready=lambda: _answers(bed))


def up(bed: Bed) -> str:
    folder = bed.part("munge")
    folder.chmod(0o755)  # munged refuses a folder that others may write to
    key = folder / "key"
    if not key.exists():
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as handle:
            handle.write(os.urandom(1024))
    return "started" if ensure(bed, server(bed)) else "running"


def _answers(bed: Bed) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(socket_path(bed))
        except OSError:
            return False
    return True
