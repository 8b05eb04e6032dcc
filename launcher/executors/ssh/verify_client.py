"""Replaying some steps of a run on another host: there, beside the run. Its record here is written before it is asked
for, so a lost connection loses no replay."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping
from typing import Any

from launcher import admit
from launcher.errors import LauncherError, UsageError
from launcher.executors import execute
from launcher.executors.verify import Started
from launcher.runs import processes, remote_record, run_ids
from launcher.runs.remote_record import Known, Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh.failures import Unreachable
from launcher.ssh.host import connect
from launcher.ssh.remote_status import confirm


def verify(run: Run, step: int | None, assignments: Mapping[str, str], secrets: Mapping[str, bytes]) -> Started:
    """Ask the run's host to replay it. Raises `LauncherError`, and then nothing is left; `Unreachable` where the host
    was lost in between, and then `ls` shows the state of the replay."""
    original = remote_record.read(run.folder)
    if original is None:
        raise UsageError(f"the record of where {run.id} is can't be read")
    me = processes.identity(os.getpid())
    token = os.urandom(16).hex()
    pointer = Pointer(address=original.address, root=original.root, token=token, submitter=me, created=time.time())
    while True:
        try:
            folder = remote_record.create(run_ids.new_id(time.time()), pointer)
            break
        except FileExistsError:
            continue
    try:
        first, last, recorded = connect(original.address).ask(
            "verify",
            _admitted,
            run={"root": original.root, "id": run.id},
            name=folder.name,
            token=token,
            step=step,
            assignments=dict(assignments),
            secrets={name: base64.b64encode(content).decode() for name, content in secrets.items()},
        )
    except Unreachable as error:
        raise Unreachable(
            f"{error}; {folder.name} may have been started or not: `ls {folder.name}` says so once it answers"
        ) from None
    except LauncherError:
        execute.discard(folder)
        raise
    remote_record.remember(folder, Known(state=State("queued"), seen=time.time()))
    confirm(folder, pointer)
    return Started(folder, first, last, recorded)


def _admitted(answer: Any) -> tuple[int, int, bool]:
    """Raises `Refused`."""
    first, last, recorded = admit.items(answer, "a replay", 3, least=3)
    return admit.whole(first, "a step"), admit.whole(last, "a step"), admit.flag(recorded, "whether it is recorded")
