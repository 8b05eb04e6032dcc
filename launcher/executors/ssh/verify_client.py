"""Replaying some steps of a run on another host: there, beside the run. Its record here is written before it is asked
for, so a lost connection loses no replay."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

from launcher import admit
from launcher.executors.ssh import submit_client
from launcher.executors.verify import Started, name_of
from launcher.runs import remote_record
from launcher.runs.store import Run
from launcher.ssh.host import connect


def verify(run: Run, step: int | None, assignments: Mapping[str, str], secrets: Mapping[str, bytes]) -> Started:
    """Ask the run's host to replay it. Raises `LauncherError`, and then nothing is left; `Unreachable` where the host
    was lost in between, and then `ls` shows the state of the replay."""
    original = remote_record.required(run)
    token = os.urandom(16).hex()
    (folder,) = submit_client.reserve([name_of(run.id)], original.address, original.root, token)
    with submit_client.handing_over([folder]):
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
    return Started(folder, first, last, recorded)


def _admitted(answer: Any) -> tuple[int, int, bool]:
    """Raises `Refused`."""
    first, last, recorded = admit.items(answer, "a replay", 3, least=3)
    return admit.whole(first, "a step"), admit.whole(last, "a step"), admit.flag(recorded, "whether it is recorded")
