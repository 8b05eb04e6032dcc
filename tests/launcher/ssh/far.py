"""The launcher as a person types it, with its jobs over SSH: on the testbed the far folders can be looked into too."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launcher.__main__ import main
from launcher.runs import run_roots, selection, store
from launcher.ssh import host
from launcher.ssh.host import Host
from tests.launcher import run_folders

HOLD = "env.HOLD=1"
"""Of a run that stays at a step until `Far.release`."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class Far:
    testbed: Any
    there: Path
    config: str
    capfd: Any

    @property
    def root(self) -> Path:
        """The run root over there."""
        return self.there / "runs"

    @property
    def python(self) -> Path:
        """What the trainer is started with."""
        return self.there / "python"

    @property
    def words(self) -> list[str]:
        where = [f"cluster.ssh_config={self.config}", f"run_root={self.root}", f"python={self.python}"]
        return ["cluster=ssh", "cluster.host=box", "telemetry.every=0", *where]

    def type(self, *words: str) -> Done:
        """`python -m launcher WORDS`, in this process."""
        self.capfd.readouterr()
        code = main(list(words))
        return Done(code, *self.capfd.readouterr())

    def ok(self, *words: str) -> Done:
        """`type` for what succeeds."""
        done = self.type(*words)
        assert done.code == 0, done.err + done.out
        return done

    def refused(self, *words: str, code: int = 2) -> str:
        """`type` for what is refused; gives the error."""
        done = self.type(*words)
        assert done.code == code, done.err + done.out
        return done.err

    def submit(self, *words: str) -> list[str]:
        """Submit, and give the names of the runs."""
        return self.ok(*self.words, *words).out.split()

    def release(self, run: str) -> None:
        """Let a trainer with `HOLD` go on to its end."""
        (self.folder(run) / "go").touch()

    def folder(self, run: str) -> Path:
        """Of a run, over there."""
        return self.root / run

    def runs(self) -> list[str]:
        """The names of the runs over there."""
        return selection.run_names(str(self.root)) if self.root.exists() else []

    def attempts(self, run: str) -> list[int]:
        return store.attempts(self.folder(run))

    def status(self, run: str) -> dict[str, Any]:
        return store.read_or_empty(self.folder(run) / "status.json")

    def state(self, run: str) -> str:
        """As `ls` tells it here."""
        return json.loads(self.ok("ls", run, "--json").out)["state"]

    def program(self, name: str, text: str) -> Path:
        """A program over there."""
        path = self.there / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def until(self, run: str, *states: str, seconds: float = 60.0) -> str:
        # Each look is a command and a question to the host.
        return until(lambda: (state := self.state(run)) in states and state, seconds, every=0.2)

    def write_status(self, run: str, **changes: Any) -> None:
        """Change what the run's status file over there says."""
        path = self.folder(run) / "status.json"
        store.write_json(path, {**self.status(run), **changes})
        os.chown(path, self.testbed.user.uid, self.testbed.user.gid)

    def pointer(self, run: str) -> Path:
        """The folder here that stands for it."""
        return Path(run_roots.remote(), run)


until = functools.partial(run_folders.until, every=0.05)


def away(far: Far) -> None:
    """From now on nothing listens where the host was."""
    host.close_all()
    config = Path(far.config)
    config.write_text(config.read_text().replace(f"Port {far.testbed.ssh.port}", "Port 1"))


@contextlib.contextmanager
def before_requests(monkeypatch, act: Callable[[Host, str], object]) -> Iterator[None]:
    """Call `act` with the host and the name of each request that is about to be sent."""
    real = Host.stream

    def stream(self, request, /, *values, **named):
        act(self, request)
        return real(self, request, *values, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Host, "stream", stream)
        yield


@contextlib.contextmanager
def asked(monkeypatch) -> Iterator[list[str]]:
    """The requests that hosts get meanwhile, by name."""
    names: list[str] = []
    with before_requests(monkeypatch, lambda host, request: names.append(request)):
        yield names
