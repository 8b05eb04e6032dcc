"""Accounting as on a real cluster: MariaDB, and slurmdbd in front of it. With it `sacct` answers."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from tests.testbed import munge
from tests.testbed.bed import LOOPBACK, Bed, listens, remove_folder, run, write
from tests.testbed.processes import Server, ensure

DATABASE = "mariadbd"
DAEMON = "slurmdbd"
# Slurm's daemons listen on the address of their own host name: this one is ours, and resolves to loopback.
CONTROLLER_HOST = "testbed-controller"


def up(bed: Bed) -> str:
    started = ensure(bed, database(bed))
    started = ensure(bed, daemon(bed)) or started
    return "started" if started else "running"


def database(bed: Bed) -> Server:
    """MariaDB with a data folder, socket and port of its own."""
    folder = bed.part("mariadb")
    data = folder / "data"
    if not (folder / "made").exists():
        remove_folder(data)  # half made by a call that was cut short
        argv = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"]
        run(argv, log=bed.log(DATABASE))
        write(folder / "password", secrets.token_urlsafe(24), 0o600)
        (folder / "made").touch()
    password = (folder / "password").read_text()
    grants = [
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;",
        f"CREATE USER IF NOT EXISTS 'slurm'@'{LOOPBACK}' IDENTIFIED BY '{password}';",
        f"GRANT ALL ON slurm_acct_db.* TO 'slurm'@'{LOOPBACK}';",
    ]
    write(folder / "grants.sql", "\n".join(grants) + "\n", 0o600)
    port = bed.ports()[DATABASE]
    argv = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={folder}/socket"]
    argv += [f"--port={port}", f"--bind-address={LOOPBACK}", f"--pid-file={folder}/pid", "--skip-name-resolve"]
    argv += [f"--init-file={folder}/grants.sql", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    argv += ["--innodb-flush-log-at-trx-commit=2"]  # a testbed need not survive a power cut
    return Server(name=DATABASE, argv=tuple(argv), ready=lambda: _greets(port))


def daemon(bed: Bed) -> Server:
    folder = daemons_folder(bed)
    port = bed.ports()[DAEMON]
    lines = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge.socket_path(bed)}",
        "CommunicationParameters": "NoInAddrAny",
        "DbdAddr": LOOPBACK,
        "DbdHost": CONTROLLER_HOST,
        "DbdPort": port,
        "SlurmUser": "root",
        "PidFile": bed.part("slurm") / "slurmdbd.pid",
        "LogFile": bed.log("slurmdbd-own"),
        "DebugLevel": "info",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": LOOPBACK,
        "StoragePort": bed.ports()[DATABASE],
        "StorageUser": "slurm",
        "StoragePass": (bed.folder / "mariadb" / "password").read_text(),
        "StorageLoc": "slurm_acct_db",
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    write(folder / "slurmdbd.conf", text, 0o600)  # slurmdbd refuses one that others can read
    return Server(
        name=DAEMON,
        argv=on_host(CONTROLLER_HOST, "slurmdbd", "-D"),
        environment={"SLURM_CONF": str(folder / "slurm.conf")},  # slurmdbd.conf is looked for beside it
        configuration=text,
        ready=lambda: listens(port),
    )


def daemons_folder(bed: Bed) -> Path:
    """Where Slurm's daemons look for their configuration."""
    return bed.part("slurm/daemons")


def on_host(name: str, *argv: str) -> tuple[str, ...]:
    """The command for running `argv` where the host's name is another: for itself and for the jobs that it starts, so
    that two nodes of one machine have two names, as nodes have. The process keeps its id."""
    return ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *argv)


def _greets(port: int) -> bool:
    """MariaDB says its version to whoever connects, once it serves."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False
