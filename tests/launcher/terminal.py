"""A person at a terminal: a command under a pseudo-terminal, what is typed into it and what it shows."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command that sees a terminal."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.shown = ""
        self.raw = b""
        self.code: int | None = None
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            for each in (signal.SIGINT, signal.SIGHUP):  # deaf to them if the tests run in the background
                signal.signal(each, signal.SIG_DFL)
            os.execvpe(argv[0], list(argv), dict(environment or os.environ))

    def type(self, line: str) -> None:
        self.press(f"{line}\n".encode())

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def expect(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Wait until it shows this. What was shown up to its end is forgotten."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"no {pattern!r} in what it showed: {self.shown[-2000:]!r}"
            assert self._read(0.1) or self.code is None, f"it ended with {self.code}: {self.shown[-2000:]!r}"
        self.shown = self.shown[found.end() :]
        return found

    def ask(self, command: str, seconds: float = 60.0) -> str:
        """Type a command and give what it printed. The mark is typed in two pieces, so that its echo isn't taken for
        what it printed."""
        self.type(f"{command}; printf '%s%s\\n' '<en' 'd>'")
        return self.expect(r"\n([^<]*)<end>", seconds)[1].strip()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.shown[-2000:]!r}"
            self._read(0.1)
        return self.code

    def all_shown(self) -> str:
        """Everything it showed, once it has ended."""
        self.wait()
        self.close()
        return _COLOURS.sub("", self.raw.decode(errors="replace"))

    def hang_up(self) -> None:
        """The window is closed."""
        with contextlib.suppress(OSError):
            os.close(self._end)

    def close(self) -> None:
        self.hang_up()
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def _read(self, seconds: float) -> bool:
        """Whether there was something, or may be more."""
        ready, _, _ = select.select([self._end], [], [], seconds)
        if ready:
            with contextlib.suppress(OSError):
                if content := os.read(self._end, 2**16):
                    self.raw += content
                    self.shown = _COLOURS.sub("", self.shown + content.decode(errors="replace")).replace("\r", "")
                    return True
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return False


def launcher(*words: str, environment: Mapping[str, str] | None = None) -> Terminal:
    """`python -m launcher` at a terminal."""
    return Terminal([sys.executable, "-m", "launcher", *words], environment)
