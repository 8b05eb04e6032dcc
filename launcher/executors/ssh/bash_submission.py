"""Submission of a bare script to a host without a Python for the agent: its run folder is laid down here, and sent."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.config import job_environment
from launcher.errors import UsageError
from launcher.executors import execute
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.runs import store
from launcher.runs.address import Address
from launcher.ssh import failures
from launcher.ssh.bash_host import HELP, Requests
from launcher.ssh.methods import REQUESTS


def submit(address: Address, no_python: str, message: Mapping[str, Any]) -> None:
    """Start the run of a message of `submit_client`. Raises `LauncherError`, as for a plan that needs the agent."""
    plan, *more = (record.from_json(plan) for plan in message["plans"])
    if more or plan.arms:
        raise UsageError(f"{no_python}; until then it takes one run at a time: no sweep, no comparison")
    if plan.script is None or not plan.script.bare or plan.container or plan.queue != "direct" or plan.after:
        raise UsageError(f"{no_python}; {HELP}, outside containers, without after=")
    requests = Requests(address, no_python, REQUESTS["submit"].seconds)
    with failures.admitting(address.destination), tempfile.TemporaryDirectory() as top:
        words = (plan.run_id, message["came_from"]["token"], plan.code, job_environment.KEPT)
        requests.send("submit", plan.run_root, _laid_down(Path(top, "run"), plan, message), *words)


def _laid_down(run: Path, plan: Plan, message: Mapping[str, Any]) -> Path:
    """The folder of a run, which is made."""
    for folder in (run, run / "attempts"):
        store.make_folder(folder, shared=False)
    execute.write(plan, run, message["passed"])
    store.write_json(run / "provenance.json", message["came_from"])
    store.write_text(run / ".token", message["came_from"]["token"])
    files = {
        run / Path(plan.secrets[name]).relative_to(plan.run_dir): base64.b64decode(text)
        for name, text in message["secrets"][0].items()
    }
    job_environment.write_secrets(files)
    return run
