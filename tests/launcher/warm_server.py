"""The process of `tests.launcher.warm` that has imported a framework: `warm_server.py MODULE ...`, its socket as stdin.

It ends with the tests. Each connection is a program to run: the file descriptors and the rest of what a process starts
with arrive, its pid and at last its exit code are sent. A client that is gone has its program killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback

SIZE = 8
"""Bytes of a number that is sent."""


def main() -> None:
    end_with_parent()
    del sys.path[0]  # this file's folder
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=sys.stdin.fileno()) as listening:
        while True:
            connection, _ = listening.accept()
            for module in sys.argv[1:]:
                importlib.import_module(module)
            gc.freeze()  # a collection in a fork would copy what it looks at
            if os.fork() == 0:
                break
            connection.close()
    run(connection)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(connection: socket.socket) -> None:
    """Run a program in another process, and look after it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    number, descriptors, *_ = socket.recv_fds(connection, SIZE, 3)
    size, content = int.from_bytes(number, "big"), b""
    while len(content) < size:
        content += connection.recv(size - len(content))
    client, *_ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(client, descriptors, *marshal.loads(content))
        return
    connection.sendall(pid.to_bytes(SIZE, "big"))
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(code.to_bytes(SIZE, "big", signed=True))
    finally:
        os._exit(0)


def become(
    client: int,
    descriptors: list[int],
    python: str,
    argv: list[str],
    environ: dict[str, str],
    cwd: str,
    umask: int,
    ignored: list[int],
) -> None:
    """Run `python -m` in this process, which ends with it."""
    end_with_parent()
    os.setsid()
    with open(f"/proc/{client}/ns/uts") as host:  # a node of the testbed has a host name of its own
        ctypes.CDLL(None).setns(host.fileno(), 0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    os.umask(umask)
    os.chdir(cwd)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if "PYTHONUNBUFFERED" in environ:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.path[:0] = [cwd, *filter(None, environ.get("PYTHONPATH", "").split(":"))]
    sys.executable = python  # torchrun starts its ranks with it
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    _, module, *sys.argv[1:] = argv
    complete(module)


def complete(module: str) -> None:
    """Run the module and end as Python does, but without finalization, which would copy all that was imported."""
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if not isinstance(code, (int, type(None))):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


main()
