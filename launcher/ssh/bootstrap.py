"""The first words on the far side: a small program for `python3 -c` that finds the agent's zip, or asks for it.

It is read by any Python from 2.7 on, so that one too old can still be told so; and it reaches that Python through
whatever shell the account has, so it travels as base64, which no shell quotes or expands.
"""

from __future__ import annotations

import base64

MARK = "launcher-agent"
"""Begins each line of ours: a login script may have printed anything before."""
FLOOR = (3, 10)
"""Oldest Python that answers, the same as for training."""

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
    from launcher.ssh.agent import serve
    say("ready")
    serve()
begin()
"""


def command(digest: str, size: int, python: str | None = None) -> str:
    """The command line for the far shell, for a zip of that digest and size. `python` may begin with `~/`.

    What the program says is a line each: `need`, then the zip is to be sent; `ready`, from there on frames go both
    ways; `old VERSION PROGRAM`; `error TEXT`.
    """
    program = _PROGRAM % {"mark": MARK, "floor": FLOOR, "digest": digest, "size": size}
    text = base64.b64encode(program.encode()).decode()
    # Double quotes inside single ones: the same to sh, csh and fish.
    return f"""{_quoted(python or "python3")} -c 'import base64;exec(base64.b64decode("{text}"))'"""


def _quoted(python: str) -> str:
    if python.startswith("~/"):
        return f'"$HOME"/{_quoted(python[2:])}'
    return "'" + python.replace("'", "'\\''") + "'"
