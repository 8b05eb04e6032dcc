"""A Python for real runs: a process that has imported the framework does `python -m amp_launcher...` for it.

Importing torch, and what torch imports at the first step of an optimizer, takes several times longer than the runs of
most tests. The run's own process is one that waits: it passes signals on, ends as the program does, and takes it along
when it is killed. What each plan asks, which version and frameworks it has, the real Python answers once for all.
Everything else is done by the real Python, and so are runs whose start is what a test is about.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher.probe.pythons import TELL

SERVER = Path(__file__).with_name("warm_server.py")
IMPORTED = {
    "torch": ("torch", "torch._dynamo", "torch.distributed.launcher.api", "sklearn.datasets"),
    "tensorflow": ("tensorflow", "keras", "sklearn.datasets"),
}
"""What is imported for recipes of each framework: nothing of the run's own code."""
CLIENT = """#!{python} -IS
import marshal, os, signal, socket, sys
argv = sys.argv[1:]
if argv == ["-c", {tell!r}]:
    print(end={told!r})
    sys.exit()
if argv[:1] == ["-u"]:
    os.environ["PYTHONUNBUFFERED"] = argv.pop(0)
name = argv[1] if argv[:1] == ["-m"] else ""
sockets = {sockets!r}
first, *words = name.replace("train_", "").split(".")
framework = next((word for word in words if word in sockets), "") if first == "amp_launcher" else ""
framework = "torch" if name == "torch.distributed.run" else framework
if framework not in sockets:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
passed_on = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
ignored = [int(number) for number in passed_on if signal.getsignal(number) == signal.SIG_IGN]
umask = os.umask(0o77)
content = marshal.dumps((sys.argv[0], argv, dict(os.environ), os.getcwd(), umask, ignored))
server = socket.socket(socket.AF_UNIX)
server.connect(sockets[framework])
socket.send_fds(server, [len(content).to_bytes(8, "big")], [0, 1, 2])
server.sendall(content)
def number_sent():
    sent = server.recv(8, socket.MSG_WAITALL)
    return int.from_bytes(sent, "big", signed=True) if sent else sys.exit("the process with the framework is gone")
pid = number_sent()
for number in passed_on:
    if number not in ignored:
        signal.signal(number, lambda number, frame: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
code = number_sent()
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@functools.cache
def python(*libraries: str) -> Path:
    """The Python's path, for the key `python`. A framework is imported when it is first asked for, and with it these.

    That libraries get our callbacks where a script imports them itself is shown by a process of its own
    (tests/amp_launcher/torch/libraries/test_attached.py).
    """
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    atexit.register(folder.cleanup)
    sockets = {framework: f"{folder.name}/{framework}" for framework in IMPORTED}
    for framework, modules in IMPORTED.items():
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(sockets[framework])
            listening.listen(100)
            subprocess.Popen(
                [sys.executable, SERVER, *modules, *libraries],
                env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdin=listening,
            )
    client = Path(folder.name, "python")
    told = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True, cwd="/").stdout
    client.write_text(CLIENT.format(python=sys.executable, sockets=sockets, tell=TELL, told=told))
    client.chmod(0o700)
    return client
