"""A host that answers what it likes: a program that speaks the launcher's frames and sends what a test wants sent.

It runs in a thread at the other end of a socket, or as a process with pipes, as behind an sshd.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import textwrap
import threading
from collections.abc import Iterable
from pathlib import Path

from launcher.runs.address import Address
from launcher.ssh import host
from launcher.ssh.openssh_transport import OpenSsh
from launcher.ssh.session import open_stream
from launcher.ssh.stream import Stalled, Stream

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

def status(**changes):
    '''An answer about a run.'''
    return {"state": ["running", "", 1, None, "2026-01-02T03:04:05Z", None, 0], "time": round(time.time()),
            "begun": True, "attempts": [1], "files": {}, "metrics": {}, "step": 7, "more": False, **changes}

def look(*items):
    '''The answer to `look`.'''
    for value in items:
        item(value)
    answer(list(items))

def honest(request):
    if request["do"] == "look":
        look(*(status() for _ in request["with"]["runs"]))
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
AS_PROCESS = f"""#!{sys.executable}
import os, sys
inward, outward = 0, 1
source = open(os.path.splitext(sys.argv[0])[0] + ".attack").read()
"""


class Pair:
    """A `Stream` to the program in a thread here."""

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
        except ConnectionResetError:
            return b""

    def write(self, data: bytes, timeout: float) -> None:
        with contextlib.suppress(BrokenPipeError):
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
    """The liar. `says` sets what it does: Python that sets functions in `attack`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.as_process = False
        self.config = folder / "ssh_config"
        self.config.touch()
        self.liar = folder / "liar.py"
        self.liar.write_text(AS_PROCESS + PROGRAM)
        self.liar.chmod(0o755)
        self.says("")

    def open_stream(self, address: Address, command: str) -> Stream:
        """Replaces `session.open_stream`; addresses with another SSH configuration are reached by that."""
        if address.config != str(self.config):
            return open_stream(address, command)
        program = Path(address.python or "")
        if self.as_process or program.parent != self.folder:
            return OpenSsh(["sh", "-c", command])
        return Pair(program.with_suffix(".attack").read_text())

    def says(self, attack: str) -> None:
        host.close_all()  # it reads its attack when it is started
        (self.folder / "liar.attack").write_text(attack)

    def liars(self, attacks: Iterable[str], **more: str) -> list[Address]:
        """For each attack an address at which it alone answers."""
        addresses = []
        for number, attack in enumerate(attacks):
            program = self.folder / f"liar-{number}.py"
            if not program.exists():
                program.symlink_to(self.liar)
            program.with_suffix(".attack").write_text(attack)
            addresses.append(self.address(f"liar-{number}", python=str(program), **more))
        return addresses

    def address(self, destination: str = "liar", **more: str) -> Address:
        return Address(destination=destination, config=str(self.config), **{"python": str(self.liar), **more})
