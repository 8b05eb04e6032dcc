"""Real run folders for tests: a script in a session of its own that behaves as run.sh does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from launcher.__main__ import main
from launcher.executors import backends
from launcher.executors.backends import states_of
from launcher.runs import processes, run_files, selection, store
from launcher.runs.states import State
from launcher.runs.store import Run
from tests import patience

_SCRIPT = r"""
RUN={run}
attempt=1
while [ -e "$RUN/attempts/$attempt" ]; do attempt=$((attempt + 1)); done
logs=$RUN/attempts/$attempt
mkdir -p "$logs"
exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
read -r stat </proc/$$/stat
fields=(${{stat##*) }})
status() {{
  printf '{{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, "started": "2026-01-02T03:04:05Z", ' \
    "$1" "$attempt" "$2" >"$RUN/.status"
  printf '"ended": %s, "reason": "%s", "process": {{"host": "%s", "boot": "%s", "pid": %s, "start": %s}}}}\n' \
    "$3" "$4" "$(uname -n)" "$(cat /proc/sys/kernel/random/boot_id)" "$$" "${{fields[19]}}" >>"$RUN/.status"
  mv -f "$RUN/.status" "$RUN/status.json"
}}
end='"2026-01-02T03:05:10Z"'
if [ -e "$RUN/cancelled" ]; then status cancelled null "$end" "before it started"; exit 1; fi
status running null null ""
export LAUNCHER_RUN_ID={name} LAUNCHER_ATTEMPT=$attempt RUN
bash -c {trainer} trainer & child=$!
wait "$child"; code=$?
if [ "$code" = 0 ]; then status done 0 "$end" ""
elif [ -e "$logs/stopped.json" ]; then status stopped "$code" "$end" ""
else status failed "$code" "$end" "the trainer ended with exit code $code"; fi
exit "$code"
"""

STEPPING = r"""
step=0
start='{"event": "start", "attempt": %s, "total_steps": 500, "epochs": 5, "resumed_from": null, "time": %s}\n'
row='{"step": %s, "epoch": %s, "loss": 0.5, "lr": 1.0, "seconds": 0.05, "samples_per_second": 2560.0,'
row+=' "loss_scale": 65536.0, "skipped": false, "skipped_total": 0, "grad_norm": null, "memory_bytes": 1048576,'
row+=' "time": %s}\n'
printf "$start" "$LAUNCHER_ATTEMPT" "$(date +%s.%N)" >>"$RUN/metrics.jsonl"
while [ "$step" -lt ${STEPS:-500} ]; do
  if [ -e "$RUN/STOP" ]; then
    printf '{"schema": 1, "checkpoint": "checkpoints/step-%09d", "step": %s}\n' $step $step \
      >"$RUN/attempts/$LAUNCHER_ATTEMPT/.stopped"
    mv "$RUN/attempts/$LAUNCHER_ATTEMPT/.stopped" "$RUN/attempts/$LAUNCHER_ATTEMPT/stopped.json"
    rm "$RUN/STOP"
    exit 85
  fi
  step=$((step + 1))
  printf "$row" $step $((step / 100)) "$(date +%s.%N)" >>"$RUN/metrics.jsonl"
  echo "step $step"
  sleep 0.05
done
"""
"""A trainer that takes a step in 50 ms, and stops and says so when it is asked to."""

DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
"""A trainer that looks at no STOP and ignores TERM."""

WITHOUT_STOP = "echo here; exec sleep 300"
"""A trainer that looks at no STOP, and ends by TERM."""

NAME = "20260102-030405-brave-otter"
SWEEP = "20260103-000000-calm-lake"


def make(root: Path, name: str = NAME, trainer: str = "true", plan: dict[str, Any] | None = None) -> Path:
    """A prepared folder, not submitted."""
    folder = store.create(root, name)
    store.write_json(folder / "plan.json", plan or {"schema": 1, "name": "mnist-o2", "words": ["amp=o2", "batch=128"]})
    script = _SCRIPT.format(run=shlex.quote(str(folder)), name=name, trainer=shlex.quote(trainer))
    (folder / "run.sh").write_text(script)
    return folder


def start(*folders: Path) -> subprocess.Popen[bytes]:
    """Submit folders to the direct queue: one script, or a driver that takes several in turn."""
    first = [len(store.attempts(folder)) + 1 for folder in folders]
    # It waits until it is known: a script that ends at once may be gone before.
    script = 'read -r _; exec bash "$1/run.sh" </dev/null'
    if len(folders) > 1:
        script = 'read -r _; for folder in "$@"; do setsid --wait bash "$folder/run.sh" </dev/null; done'
    argv = ["bash", "-c", script, "sweep", *map(str, folders)]
    started = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.PIPE)
    assert started.stdin is not None
    identity = processes.identity(started.pid)
    assert identity is not None
    for folder, number in zip(folders, first, strict=True):
        submit(folder, identity, first_attempt=number, sweep="a-sweep" if len(folders) > 1 else None)
    started.stdin.close()
    return started


def begin(root: Path, trainer: str) -> Path:
    """A run that was started just now."""
    folder = make(root, trainer=trainer)
    start(folder)
    return folder


def running(root: Path, trainer: str) -> Path:
    """A run that is seen to run."""
    folder = begin(root, trainer)
    until(lambda: state(folder).name == "running")
    return folder


def submit(folder: Path, process: processes.Identity, *, first_attempt: int = 1, sweep: str | None = None) -> None:
    """A submission.json that names the process."""
    record = {
        "schema": 1,
        "queue": "direct",
        "host": process.host,
        "submitted": "2026-01-02T03:04:04Z",
        "sweep": sweep,
        "process": processes.to_json(process),
        "first_attempt": first_attempt,
    }
    store.write_json(folder / "submission.json", record)


def finished(root: Path, name: str = NAME, state: str = "done", **more: Any) -> Path:
    """A folder as a run that ended long ago left it."""
    folder = make(root, name)
    store.clear_unfinished(root, name)
    gone = processes.Identity(processes.host(), processes.boot(), 2**22 + 1, 1)
    submit(folder, gone)
    (folder / "attempts" / "1").mkdir(parents=True)
    status = {
        "schema": 1,
        "state": state,
        "attempt": 1,
        "exit_code": 0 if state == "done" else 1,
        "started": "2026-01-02T03:04:05Z",
        "ended": "2026-01-02T03:05:10Z",
        "reason": "",
        "process": processes.to_json(gone),
        **more,
    }
    store.write_json(folder / "status.json", status)
    return folder


def sweep(root: Path, count: int, create: Callable[..., Path] = finished, **how: Any) -> list[Path]:
    """The cells of a sweep, by default as it left them long ago."""
    folders = [create(root, f"{SWEEP}-{index:03}", **how) for index in range(count)]
    return folders


def result(**more: Any) -> dict[str, Any]:
    """A result.json."""
    return {
        "schema": 1,
        "status": "done",
        "requested": {"amp": "o2", "dtype": "auto", "batch": 128},
        "effective": {"amp": "o2", "dtype": "bfloat16", "batch": 128},
        "observed": {"verdict": "proved", "why": "97% of the work in bfloat16"},
        "throughput": {"unit": "samples/s", "mean": 3410.5, "median": 3400.0, "p10": 3100.0, "p90": 3600.0},
        "peak_memory_bytes": 512 * 2**20,
        "loss": {"first": 2.31, "last": 0.0831},
        "eval": {"accuracy": 0.9722, "loss": 0.1},
        "loss_scale": {"final": 65536.0, "skipped_steps": 2},
        **more,
    }


def state(folder: Path) -> State:
    return states_of([Run(str(folder.parent), folder.name)])[0].state


def until(true: Callable[[], Any], seconds: float = 60.0, every: float = 0.02) -> Any:
    """Wait for something to become true, and give it. Fails the test if it doesn't in that many seconds of a quiet
    machine."""
    deadline = time.monotonic() + patience.scaled(seconds)
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(every)
    return value


def end_all(root: Path) -> None:
    """End every run of a root."""
    runs = selection.newest([str(root)], 10_000)
    backends.end({run.path: run_files.load(run.path) for run in runs}, 0)


def shell_of(folder: Path) -> int:
    """The pid in status.json, once it is running."""
    return int(until(lambda: store.read_or_empty(folder / "status.json").get("process"))["pid"])


def launcher(*arguments: str, state_home: Path) -> subprocess.CompletedProcess[str]:
    """`python -m launcher` as a person types it."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state_home)}
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment)


def called(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has imported the launcher, where a test is about what a run does and not about
    how the command starts."""
    written, before = (io.BytesIO(), io.BytesIO()), os.getcwd()
    out, err = (io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in written)
    with mock.patch.dict(os.environ, environ), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # by which a resume would differ from its start
        os.chdir(cwd or before)
        try:
            code = main(arguments)
        finally:
            os.chdir(before)
    return subprocess.CompletedProcess(arguments, code, *(stream.getvalue().decode() for stream in written))


def command(*arguments: str) -> Sequence[str]:
    import sys

    return [sys.executable, "-m", "launcher", *arguments]


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
