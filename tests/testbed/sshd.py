"""Two sshds on loopback: a login host, and a bastion to jump over. Keys and known hosts are made for the testbed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.testbed import user
from tests.testbed.bed import LOOPBACK, SYSTEM_PATH, Bed, listens, run, write
from tests.testbed.processes import Server, ensure

LOGIN = "sshd"
BASTION = "sshd-bastion"
SERVERS = (LOGIN, BASTION)


def up(bed: Bed, session: Mapping[str, str]) -> str:
    """`session` is the environment that every login gets, as a site's /etc/profile gives it."""
    folder = bed.part("ssh")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for key in ("id_ed25519", *(f"host-{name}" for name in SERVERS)):
        if not (folder / key).exists():
            run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", folder / key], log=bed.log("ssh")
            )
    public = (folder / "id_ed25519.pub").read_text()
    write(folder / "authorized_keys", public)
    lines = []
    for name in SERVERS:
        key = " ".join((folder / f"host-{name}.pub").read_text().split()[:2])
        lines.append(f"[{LOOPBACK}]:{bed.ports()[name]} {key}\n")
    write(folder / "known_hosts", "".join(lines))
    write(folder / "config", client_configuration(bed, folder))
    _give_to_user(bed, folder)
    started = [name for name in SERVERS if ensure(bed, server(bed, name, session))]
    return f"started {', '.join(started)}" if started else "running"


def server(bed: Bed, name: str, session: Mapping[str, str]) -> Server:
    folder = bed.folder / "ssh"
    port = bed.ports()[name]
    values = {"PATH": SYSTEM_PATH} | dict(session)
    lines = [
        f"ListenAddress {LOOPBACK}",
        f"Port {port}",
        f"HostKey {folder}/host-{name}",
        f"PidFile {folder}/{name}.pid",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        # The keys lie in the testbed's folder, which may be below one that everybody may write to, as /tmp.
        "StrictModes no",
        "AuthenticationMethods publickey",
        "PermitRootLogin prohibit-password",
        "UsePAM no",
        "UseDNS no",
        "PrintMotd no",
        "Subsystem sftp internal-sftp",
        "SetEnv " + " ".join(f"{key}={value}" for key, value in values.items()),
        # A hundred runs at once through one connection, and many connections at once, are things that tests do.
        "MaxSessions 200",
        "MaxStartups 200:30:400",
    ]
    text = "\n".join(lines) + "\n"
    path = folder / f"{name}.conf"
    write(path, text)
    # -e logs to standard error; sshd wants to be called by its whole path, since it runs itself again.
    argv = ("/usr/sbin/sshd", "-D", "-e", "-f", str(path))
    return Server(name=name, argv=argv, configuration=text, ready=lambda: listens(port))


def client_configuration(bed: Bed, folder: Path) -> str:
    """An ssh configuration with every way in: the user and root, plainly and over the bastion."""
    ports = bed.ports()
    hosts = {
        "testbed": (user.NAME, LOGIN, ""),
        "testbed-root": ("root", LOGIN, ""),
        "testbed-bastion": (user.NAME, BASTION, ""),
        "testbed-jump": (user.NAME, LOGIN, "testbed-bastion"),
    }
    text = ""
    for alias, (name, daemon, jump) in hosts.items():
        text += f"Host {alias}\n  HostName {LOOPBACK}\n  Port {ports[daemon]}\n  User {name}\n"
        text += f"  ProxyJump {jump}\n" if jump else ""
    text += f"Host testbed testbed-*\n  IdentityFile {folder}/id_ed25519\n  IdentitiesOnly yes\n"
    text += f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    return text + "  StrictHostKeyChecking yes\n  PasswordAuthentication no\n  BatchMode yes\n"


def _give_to_user(bed: Bed, folder: Path) -> None:
    """The ordinary user's own ~/.ssh: a private key must belong to the one who uses it."""
    account = user.account()
    assert account
    own = Path(account.pw_dir) / ".ssh"
    own.mkdir(mode=0o700, exist_ok=True)
    for name in ("id_ed25519", "known_hosts"):
        shutil.copyfile(folder / name, own / name)
    write(own / "config", client_configuration(bed, own))
    (own / "id_ed25519").chmod(0o600)
    for path in [own, *own.iterdir()]:
        os.chown(path, account.pw_uid, account.pw_gid)
