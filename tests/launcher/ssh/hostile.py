"""A host that answers what it likes: a program that speaks the launcher's frames and says what a test wants said.

It runs behind a real sshd on loopback, or, for the tables of lies, in a thread at the other end of a socket.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import sys
import textwrap
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.runs.address import Address
from launcher.ssh import host, transport
from launcher.ssh.stream import Stalled, Stream
from tests.launcher.ssh.own_sshd import Sshd
from tests.launcher.ssh.ways import keys

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
needs_sshd = pytest.mark.skipif(not os.access(SSHD, os.X_OK), reason="needs sshd (Debian: openssh-server)")

PROGRAM = """
import json, os, struct, sys, time

def raw(data):
    while data:
        data = data[os.write(outward, data):]

def frame(kind, content):
    raw(struct.pack(">cI", kind, len(content)) + content)

def send(value):
    frame(b"J", (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass"))

def item(value):
    send({"item": value})

def answer(value=None):
    send({"answer": value})

def beat():
    frame(b"K", b"")

def read(count):
    data = b""
    while len(data) < count:
        part = os.read(inward, count - len(data))
        if not part:
            sys.exit()
        data += part
    return data

def receive():
    while True:
        kind, length = struct.unpack(">cI", read(5))
        content = read(length)
        if kind == b"J":
            request = json.loads(content)
            left = request.get("bytes", 0)
            while left > 0:
                left -= len(read(struct.unpack(">cI", read(5))[1]))
            return request

def told(**changes):
    '''An answer about a run.'''
    return {"state": ["running", "", 1, None, "2026-01-02T03:04:05Z", None, 0], "begun": True, "attempts": [1],
            "files": {}, "metrics": {}, "step": 7, "more": False, **changes}

def look(*items):
    '''As the protocol is, items; and in the answer too, as it was before: then each of the runs is told the same.'''
    for each in items:
        item(each)
    answer(list(items))

def honest(request):
    if request["do"] == "look":
        look(*(told() for _ in request["with"]["runs"]))
    elif request["do"] == "cancel":
        answer(["" for _ in request["with"]["runs"]])
    else:
        answer()

attack = {}
exec(source)
raw(b"\\nlauncher-agent ready\\n")
while True:
    request = receive()
    attack.get(request["do"], honest)(request)
"""
BEHIND_SSHD = """#!{python}
import os, sys
inward, outward = 0, 1
source = open(os.path.splitext(sys.argv[0])[0] + ".attack").read()
"""


class Pair:
    """A `Stream` to the program in a thread here: what is tested is the launcher's reading, not sshd."""

    def __init__(self, attack: str) -> None:
        self._ours, theirs = socket.socketpair()
        threading.Thread(target=self._run, args=(theirs, attack), daemon=True).start()

    @staticmethod
    def _run(theirs: socket.socket, attack: str) -> None:
        with theirs, contextlib.suppress(OSError, SystemExit):
            end = theirs.fileno()
            exec(PROGRAM, {"inward": end, "outward": end, "source": attack})

    def read(self, timeout: float) -> bytes:
        self._ours.settimeout(timeout)
        try:
            return self._ours.recv(2**16)
        except TimeoutError:
            raise Stalled from None

    def write(self, data: bytes, timeout: float) -> None:
        self._ours.sendall(data)

    def complaint(self) -> str:
        return ""

    def exit_code(self) -> None:
        return None

    def close(self) -> None:
        self._ours.close()


def answering(request: str, body: str) -> str:
    """An attack that answers one request so."""
    return f"def _(request):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\nattack[{request!r}] = _\n"


class Hostile:
    """The sshd and its liar. `says` sets what the liar does: Python that sets functions in `attack`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.over_sshd = False
        key, own = keys(folder, name="id"), keys(folder, name="host")
        (folder / "authorized").write_text((folder / "id.pub").read_text())
        if os.getuid() == 0:  # where sshd wants it
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        lines = {
            "ListenAddress": "127.0.0.1",
            "HostKey": str(own),
            "AuthorizedKeysFile": str(folder / "authorized"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "prohibit-password",
            "MaxStartups": "100:30:200",
        }
        self.sshd = Sshd(folder, own.with_suffix(".pub"), lines)
        settings = {
            "HostName": "127.0.0.1",
            "User": getpass.getuser(),
            "IdentityFile": key,
            "IdentitiesOnly": "yes",
            "GlobalKnownHostsFile": "/dev/null",
            **self.sshd.lines,
        }
        self.config = folder / "ssh_config"
        self.config.write_text("Host *\n" + "".join(f"  {name} {value}\n" for name, value in settings.items()))
        self.liar = folder / "liar.py"
        self.liar.write_text(BEHIND_SSHD.format(python=sys.executable) + PROGRAM)
        self.liar.chmod(0o755)
        self.says("")

    def open_stream(self, address: Address, command: str) -> Stream:
        """In the place of `transport.open_stream`."""
        program = Path(address.python or "")
        in_a_thread = program.parent == self.folder and address.transport == "fabric" and not self.over_sshd
        if not in_a_thread or address.config != str(self.config):
            return transport.open_stream(address, command)
        return Pair(program.with_suffix(".attack").read_text())

    def says(self, attack: str) -> None:
        host.close_all()  # it reads its attack when it is started
        (self.folder / "liar.attack").write_text(attack)

    def liars(self, attacks: Iterable[str], **more: str) -> list[Address]:
        """For each attack an address at which it alone answers."""
        found = []
        for number, attack in enumerate(attacks):
            program = self.folder / f"liar-{number}.py"
            if not program.exists():
                program.symlink_to(self.liar)
            program.with_suffix(".attack").write_text(attack)
            found.append(self.address(f"liar-{number}", python=str(program), **more))
        return found

    def address(self, destination: str = "liar", **more: str) -> Address:
        return Address(destination=destination, config=str(self.config), **{"python": str(self.liar), **more})
