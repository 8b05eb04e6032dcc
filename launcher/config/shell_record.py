"""The shell in which a script's run began: a salted digest of each variable that it inherited, and no value."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from launcher.config import job_environment
from launcher.runs import store

FILE = ".shell"
"""Of a run folder, of mode 0600."""


def write(folder: Path, environment: Mapping[str, str]) -> None:
    """Record the variables that a script inherits of this environment."""
    salt = secrets.token_bytes(16)
    inherited = job_environment.inherited(environment)
    digests = {name: _digest(salt, value) for name, value in sorted(inherited.items())}
    store.write_text(folder / FILE, json.dumps({"schema": 1, "salt": salt.hex(), "digests": digests}))


def differences(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The names of the variables, those of a terminal's session aside, that differ in this environment from those that
    the run in that folder has inherited; none where there is no such record."""
    try:
        record = json.loads((folder / FILE).read_text(encoding="utf-8", errors="surrogateescape"))
        salt, digests = bytes.fromhex(record["salt"]), dict(record["digests"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    now = {name: _digest(salt, value) for name, value in job_environment.inherited(environment).items()}
    changed = {name for name in {*now, *digests} if now.get(name) != digests.get(name)}
    return sorted(name for name in changed if not job_environment.is_of_session(name))


def _digest(salt: bytes, value: str) -> str:
    return hmac.new(salt, os.fsencode(value), hashlib.sha256).hexdigest()
