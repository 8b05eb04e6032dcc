"""Processes forked from one that has imported its framework, which takes longer than what most tests run.

TensorFlow and torch start no thread and look at no device until something is computed, so a fork begins as a new
process does. The command itself, and what has to be set before an import, is tested by starting Python.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests import patience

REPOSITORY = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
LIMIT = 500
"""Seconds of a quiet machine that a job may take which compiles for the first time."""


_preloaded = [__name__]


def preload(*modules: str) -> None:
    """Import these in the process from which others are forked, which starts with the first of them."""
    _preloaded.extend(modules)


def environment(**more: str) -> dict[str, str]:
    """Ours with one thread, and without what would make a trainer another job's."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


class Forked:
    """A job of one or several ranks, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        target: Callable[..., object],
        arguments: Sequence[Any] = (),
        *,
        ranks: int = 1,
        environ: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
        context: Any = SERVER,
    ) -> None:
        """`target` is a function of a module. It runs in each rank, in a session of its own, as torchrun's ranks do.
        `context` is multiprocessing's; another one than the server's forks this process."""
        self._folder = tempfile.TemporaryDirectory()
        shared = dict(environment() if environ is None else environ)
        if ranks > 1:
            from torch.distributed import TCPStore

            # Served from here, as torchrun does it: a rank that served it would have to find a port that stays free.
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port), "WORLD_SIZE": str(ranks)}
            shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        self.ranks = []
        for number in range(ranks):
            own = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)} if ranks > 1 else shared
            output = f"{self._folder.name}/{number}"
            self.ranks.append(context.Process(target=_run, args=(output, own, str(cwd), target, arguments)))
        if context is SERVER:
            _start_server()
        for rank in self.ranks:
            rank.start()

    @property
    def pid(self) -> int:
        """Of the first rank."""
        return self.ranks[0].pid

    @property
    def returncode(self) -> int | None:
        """The first that is not 0; None while a rank runs."""
        codes = [rank.exitcode for rank in self.ranks]
        return None if None in codes else next((code for code in codes if code), 0)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = LIMIT) -> int:
        """Kills all ranks and raises `TimeoutExpired` where they take longer, in seconds."""
        deadline = time.monotonic() + patience.scaled(timeout)
        for rank in self.ranks:
            rank.join(max(0, deadline - time.monotonic()))
        code = self.returncode
        if code is None:
            self.kill()
            raise subprocess.TimeoutExpired(f"{self.ranks}", timeout, *self._output())
        return code

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        self.wait(timeout)
        return self._output()

    def complete(self, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
        out, err = self.communicate(timeout)
        return subprocess.CompletedProcess([], self.wait(), out, err)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """All ranks at once, and what they started."""
        for rank in self.ranks:
            if rank.exitcode is None:
                with contextlib.suppress(ProcessLookupError):  # of a rank that has no session yet
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.kill()
        for rank in self.ranks:
            rank.join()

    def printed(self, stream: str) -> list[str]:
        """What each rank has printed so far; `stream` is out or err."""
        files = [Path(f"{self._folder.name}/{rank}.{stream}") for rank in range(len(self.ranks))]
        return [file.read_text() if file.exists() else "" for file in files]

    def _output(self) -> tuple[str, str]:
        return "".join(self.printed("out")), "".join(self.printed("err"))


@atexit.register  # after multiprocessing's own, so before it, which would wait for what a failed test left
def _kill_all() -> None:
    for rank in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.kill()


@functools.cache
def _start_server() -> None:
    """It imports by PYTHONPATH: Python 3.11 gives it no other path, and tests are in folders of their own by then."""
    SERVER.set_forkserver_preload([*_preloaded, "tests.amp_launcher.frozen"])
    before = dict(os.environ)
    os.environ.update(environment())
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def start(*command: str, **environ: str) -> Forked:
    """`python -m` with this command: a module and its words."""
    return Forked(run_as_main, (("-m", command[0]), command[1:]), environ=environment(**environ))


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same, once it has ended."""
    return start(*command, **environ).complete()


def run_as_main(program: Sequence[str], words: Sequence[str]) -> None:
    """As `python -m MODULE WORDS` for ("-m", MODULE), and `python FILE WORDS` for (FILE,)."""
    sys.argv = [program[-1], *words]
    if program[0] == "-m":
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")


def _run(output: str, environ: dict[str, str], cwd: str, target: Callable[..., object], given: Sequence[Any]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive the tests
    os.setsid()
    for descriptor, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{output}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    # New ones: an exit flushes the files that collections see, and the old ones are frozen.
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    atexit._clear()  # those of the process it was forked from
    multiprocessing.set_start_method(None, force=True)  # a script's own: the server's would import all of it anew
    try:
        target(*given)
    finally:
        if "TF_CONFIG" in os.environ:
            from tensorflow.python.eager import context

            context._reset_context()  # waits for the other workers, as the interpreter's finalization does
        atexit._run_exitfuncs()  # multiprocessing ends without: XLA's dumps would stay
