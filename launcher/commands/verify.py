"""`verify`: replay some steps of a run from its checkpoint, and compare bit by bit."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.commands.arguments import boolean, runs_and_keys, single
from launcher.errors import UsageError
from launcher.executors.verify import Started, verify_here
from launcher.runs import run_roots, store
from launcher.runs.schema import ResultRecord
from launcher.runs.states import State
from launcher.ui import ended_runs, summary, tables
from launcher.ui.foreground import leave, stay

HELP = """\
Replay some steps of a run from its checkpoint, and compare each bit with what the run left.

usage: python -m launcher verify RUN [step=N] [cluster.KEY=value ...] [detach=true] [run_root=PATH]

The steps from the newest intact checkpoint before step N to step N run again, in a run folder of their own, with the
run's code and settings, where the run ran; without an earlier checkpoint they begin at the run's beginning. N is the
last recorded step unless given. With verify.record=true a run records loss, gradient norm and a digest of each tensor
for each step, and the first step and tensor that differ are named. Without it the checkpoint of step N is compared, but
not one in shards (parallel=fsdp), which needs the record.

cluster.KEY=value changes where it goes, as cluster.constraint=... or cluster.nodelist=node2 on Slurm: another
node of the same kind tells a faulty one. A replay never goes to another cluster or SSH host: start the run there too,
with verify.record=true, and compare the files in verify/ of both. detach=true returns at once. secrets.NAME is needed
again, as for resume.

The verdict is `same`, `differs` or `not comparable`, with the reason: another CPU or GPU model, number of threads,
version or data, or a run that is best_effort, is never called corruption.

exit codes: 0 same, 1 differs, 2 not comparable or refused, 3 the replay failed and there is no verdict.
"""
CODES = {"same": 0, "differs": 1, "not comparable": 2}
NO_VERDICT = 3


def main(arguments: Sequence[str]) -> int:
    names, assignments, secrets = runs_and_keys("verify", arguments, "the step is said as step=N")
    root = assignments.pop("run_root", None)
    step = _step(assignments.pop("step", None))
    detach = boolean("detach", assignments.pop("detach", "false"))
    if not names:
        raise UsageError("verify takes one run: python -m launcher verify RUN [step=N]")
    run = single("verify", names, run_roots.named(root))
    if run_roots.is_remote(run.root):
        from launcher.executors.ssh import verify_client

        started = verify_client.verify(run, step, assignments, secrets)
    else:
        started = verify_here(run, step, assignments, secrets)
    print(_introduction(run.id, started), file=sys.stderr)
    if detach:
        return leave([started.folder])
    code = stay([started.folder], last_words)
    return code if code == 130 else code_of(started.folder)


def _introduction(run: str, started: Started) -> str:
    steps = f"steps {started.first + 1} to {started.step}" if started.step > started.first + 1 else ""
    start = f"its checkpoint of step {started.first}" if started.first else "its beginning"
    what = "its record of each step" if started.recorded else f"its checkpoint of step {started.step}"
    return f"{started.folder.name} replays {steps or f'step {started.step}'} of {run} from {start}, against {what}"


def last_words(states: Mapping[Path, State], width: int = 0) -> list[str]:
    """The verdict in a sentence; without one, all that is known of the replay."""
    ((folder, state),) = states.items()
    verified = summary.result_of(folder, state, ("attempts", "verify")).verify
    if verified.verdict not in CODES:
        return [f"no verdict on {folder.name}", *ended_runs.of_run(folder, state, time.time(), width)]
    return [tables.clean(f"{verified.verdict}: {verified.why}"), f"folder  {summary.place_of(folder)}"]


def code_of(folder: Path) -> int:
    """The exit code that says the verdict in this folder."""
    verdict = store.read(ResultRecord, folder / "result.json", ("verify",)).verify.verdict
    return CODES.get(verdict or "", NO_VERDICT)


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,15}", text):
        raise UsageError(f"step={text} should be a whole number from 1 (command line)")
    return int(text)
