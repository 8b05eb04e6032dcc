"""The command that starts the agent: a small program for `python3 -c` that finds the agent's zip, or requests it.

Any Python from 2.7 on can read it, so that one that is too old can report its version. It is sent as base64, which
passes through every login shell unchanged.
"""

from __future__ import annotations

import base64

MARK = "launcher-agent"
"""Marks the program's lines among what login scripts print."""
FLOOR = (3, 10)
"""The oldest Python that the agent runs on, the same as for training."""

_PROGRAM = """
import sys
def say(text):
    sys.stdout.write("\\n%(mark)s " + text + "\\n")
    sys.stdout.flush()
def begin():
    if sys.version_info < %(floor)r:
        return say("old %%d.%%d.%%d %%s" %% (sys.version_info[:3] + (sys.executable,)))
    import hashlib, os
    folder = os.path.expanduser("~/.cache/launcher")
    path = folder + "/agent-%(digest)s.zip"
    def whole(data):
        return hashlib.sha256(data).hexdigest() == "%(digest)s"
    try:
        if not (os.path.exists(path) and whole(open(path, "rb").read())):
            say("need")
            data = b""
            while len(data) < %(size)d:
                part = os.read(0, %(size)d - len(data))
                if not part:
                    return
                data += part
            umask = os.umask(0o77)  # what leads to code that runs is the user's alone
            os.makedirs(folder, exist_ok=True)
            os.umask(umask)
            aside = "%%s.%%d" %% (path, os.getpid())
            try:
                with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                    out.write(data)
                os.replace(aside, path)
            except OSError:
                try:
                    os.unlink(aside)
                except OSError:
                    pass
                raise
    except OSError as error:
        return say("error %%s: %%s" %% (error.strerror, error.filename or folder))
    sys.path[:1] = [path]
    from launcher.executors.ssh.agent import serve
    say("ready")
    serve()
begin()
"""


def command(digest: str, size: int, python: str | None = None) -> str:
    """The command line for the remote shell, for a zip of that digest and size. `python` may begin with `~/`.

    The program prints lines: `need`, then the zip is to be sent; `ready`, from then on frames go both ways; `old
    VERSION PROGRAM`; `error TEXT`.
    """
    program = _PROGRAM % {"mark": MARK, "floor": FLOOR, "digest": digest, "size": size}
    text = base64.b64encode(program.encode()).decode()
    # Double quotes inside single ones mean the same to sh, csh and fish.
    return f"""{_quoted(python or "python3")} -c 'import base64;exec(base64.b64decode("{text}"))'"""


def _quoted(python: str) -> str:
    if python.startswith("~/"):
        return f'"$HOME"/{_quoted(python[2:])}'
    return "'" + python.replace("'", "'\\''") + "'"
