"""Who asks hostile hosts: runs that they have, one that ended here, and files that are nobody's business."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.errors import LauncherError
from launcher.runs import remote_record, run_roots
from launcher.runs.address import Address
from launcher.runs.log_pieces import LogOffset
from launcher.runs.remote_record import Pointer
from launcher.runs.store import Run
from launcher.ssh import host, session
from launcher.ssh.logs import from_host
from launcher.ssh.methods import REQUESTS
from tests.launcher import run_folders
from tests.launcher.ssh.far import Done
from tests.launcher.ssh.hostile import Hostile

RUN, OTHER = "20260102-030405-brave-otter", "20260102-030406-calm-heron"
SECONDS = 2.0
"""In which each answer has to be here, in these tests."""
UNHURRIED = 30.0
"""The same where nothing waits for it: what is refused is refused at once."""
REFUSED = "sent data that the protocol does not allow: "
BAD = f"liar {REFUSED}"
LATE = f"has not answered in {SECONDS:.0f} s, though its connection lives"


NAMES = (
    "../../../../outside/precious",
    "../{other}/plan.json",
    "{outside}/precious",
    "elsewhere.json",
    "ELSEWHERE.json",
    "elſewhere.json",
    "./elsewhere.json",
    "attempts/../elsewhere.json",
    "known.json",
    ".elsewhere.json",
    "plan.json/../elsewhere.json",
    "plan.json\\0",
    "config",
    "run.sh",
    "checkpoints/a",
    "attempts/2/stopped.json",
    "attempts/1/stdout.log",
    "arms/00/plan.json",
    "",
    ".",
    "x" * 5000,
)
"""Of files that were not asked for."""

INSIDE = ("config", "run.sh", "checkpoints/a", "attempts/2/stopped.json", "attempts/1/stdout.log", "arms/00/plan.json")
"""Of these, those that a fetch may bring."""


def pointer_to(address: Address, root: str = "/runs") -> Pointer:
    return Pointer(address=address, root=root, token="t", created=time.time())


class Victim:
    """Uses the launcher while the liar answers."""

    def __init__(self, folder: Path, liar: Hostile, capfd, monkeypatch) -> None:
        self.folder, self.liar, self.capfd, self.monkeypatch = folder, liar, capfd, monkeypatch
        self.deadline(SECONDS)
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_text("precious")
        roots = folder / "here"
        roots.mkdir()
        run_folders.finished(roots, OTHER)
        run_roots.remember(roots)
        self.run = remote_record.create(RUN, pointer_to(liar.address()))
        self.before = self.state()

    def deadline(self, seconds: float, opening: float = UNHURRIED) -> None:
        """For each answer, and for the start of the program that answers."""
        for name, request in REQUESTS.items():
            self.monkeypatch.setitem(REQUESTS, name, request._replace(seconds=seconds))
        self.monkeypatch.setattr(session, "OPENING", opening)
        self.monkeypatch.setattr(host, "SILENCE", 1.5 * opening)

    def runs(self, attacks: Iterable[str], **more: str) -> list[Run]:
        """For each attack a run of its own, on a host of its own."""
        folders = [
            remote_record.create(f"20260101-{number:06}-brave-otter", pointer_to(address))
            for number, address in enumerate(self.liar.liars(attacks, **more))
        ]
        self.before = self.state()
        return [Run(str(folder.parent), folder.name) for folder in folders]

    def state(self) -> dict[str, bytes]:
        """All files that no answer may change."""
        return {
            str(path): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
            and (path.name == remote_record.POINTER or not path.is_relative_to(self.run.parent))
            and ".unfinished" not in path.parts
        }

    def type(self, *words: str) -> Done:
        done = self.type_only(*words)
        assert self.state() == self.before
        return done

    def type_only(self, *words: str) -> Done:
        """The same where files may change."""
        self.capfd.readouterr()
        done = Done(main(list(words)), *self.capfd.readouterr())
        assert "Traceback" not in done.err
        shown = (done.out + done.err).replace("\n", "")
        assert shown.isprintable(), ascii(shown)
        return done

    def read_log(self, run: Run) -> None:
        """To its end, as `logs` does."""
        pointer, place, more = remote_record.required(run), None, True
        assert pointer is not None
        while more:
            piece = from_host(run, pointer, place, attempt=None, lines=None, following=False)
            sizes = map(len, piece.texts)
            place = LogOffset(
                piece.place.attempt, *(at + size for at, size in zip(piece.place[1:], sizes, strict=True))
            )
            more = piece.more

    def refusals(self, calls: Sequence[Callable[[], Any]]) -> list[str]:
        """The errors that calls raise, made side by side; each ends a command with exit code 3."""

        def refusal(call: Callable[[], Any]) -> str:
            with pytest.raises(LauncherError) as caught:
                call()
            assert caught.value.exit_code == 3 and str(caught.value).isprintable()
            return str(caught.value)

        with ThreadPoolExecutor(8) as pool:
            messages = list(pool.map(refusal, calls))
        host.close_all()
        assert self.state() == self.before
        return messages
