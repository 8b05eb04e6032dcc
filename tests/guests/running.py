"""A guest run under plain Python and under the launcher's wrapper, and what each left."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.amp_launcher.forking import Forked, environment, run_as_main
from tests.guests import state
from tests.guests.reading import Guest

WORDS = {
    "o0": ["amp=o0"],
    "o1": ["amp=o1"],
    "script": ["amp=o1", "train.precision=script"],
}
OURS = re.compile(
    r"(<frozen runpy>.*|amp=\w+( is emulated)?[: ].*|float32 products .*|script: .*|steps/s not known: .*"
    r"|[\d,]+ steps of .*)"
)
"""A line that the wrapper prints; and one about the wrapper's module, where it was imported before the fork."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a process of a guest left."""

    code: int
    out: str
    err: str
    state: Mapping[str, str]
    files: Mapping[str, str]
    """Digests by name, those that it wrote where it started."""
    verdict: str = ""
    why: str = ""


def alone(guest: Guest, folder: Path, *, by_hand: bool) -> Left:
    """Run it under plain Python."""
    return _run(guest, folder, by_hand, _has_tf32(guest, by_hand), lambda file: (str(file),), ())


def under_launcher(guest: Guest, folder: Path, mode: str) -> Left:
    """Run it under the wrapper, in a mode of `WORDS`."""
    words = [*WORDS[mode], "require_proof=false", "device=cpu", *guest.words]
    module = ("-m", f"amp_launcher.{guest.framework}.script")
    place = [f"run={folder / 'run'}", f"workdir={folder / 'at'}", f"script={folder / 'at' / 'train.py'}"]
    tf32 = _has_tf32(guest, mode != "o0")
    return _run(guest, folder, mode == "script", tf32, lambda file: module, [*words, *place])


def _has_tf32(guest: Guest, by_hand: bool) -> bool:
    """Whether TF32 is switched on before the script: for some in o0 and off in the others, for the rest vice versa."""
    return (len(guest.name) + by_hand) % 2 == 1


def run_switched(tf32: bool, program: Sequence[str], words: Sequence[str]) -> None:
    """With torch's switches as a run on a GPU or NVIDIA's images set them."""
    from amp_launcher.torch.precision.tf32 import switch_tf32

    switch_tf32(tf32)
    run_as_main(program, words)


@functools.cache
def _process_with(module: str) -> ProcessPoolExecutor:
    """A process that has imported this module alone."""
    # Paddle's import warns, of which a script sees nothing.
    quiet = {"PYTHONWARNINGS": "ignore", "GLOG_minloglevel": "3"} if module == "paddle" else {}
    with mock.patch.dict(os.environ, quiet):
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), __import__, (module,))
        pool.submit(os.getpid).result()
    return pool


def _forked_from_it(*given: object, **words: object) -> subprocess.CompletedProcess[str]:
    return Forked(*given, **words, context=multiprocessing.get_context("fork")).complete()


def _run(guest: Guest, folder: Path, by_hand: bool, tf32: bool, program, words) -> Left:
    at, run = folder / "at", folder / "run"
    at.mkdir(parents=True)
    run.mkdir()
    file = at / "train.py"
    file.write_text(guest.script(by_hand=by_hand))
    environ = environment(**{**guest.environ, state.PATH: str(folder / "state.json"), "PYTHONDONTWRITEBYTECODE": "1"})
    if guest.fresh:
        command = [sys.executable, *program(file), *words]
        done = subprocess.run(command, env=environ, cwd=at, capture_output=True, text=True)
    elif guest.imported:
        job = (run_as_main, (program(file), words))
        done = _process_with(guest.imported).submit(_forked_from_it, *job, environ=environ, cwd=at).result()
    else:
        job = (program(file), words)
        started = (run_switched, (tf32, *job)) if guest.framework == "torch" else (run_as_main, job)
        done = Forked(*started, environ=environ, cwd=at).complete()
    kept, result = folder / "state.json", run / "result.json"
    observed = json.loads(result.read_text())["observed"] if result.exists() else {}
    return Left(
        code=done.returncode,
        out=done.stdout.replace(str(folder), "FOLDER"),
        err=done.stderr.replace(str(folder), "FOLDER"),
        state=json.loads(kept.read_text()) if kept.exists() else {},
        files={
            str(path.relative_to(at)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(at.rglob("*"))
            if path.is_file() and path != file
        },
        verdict=said if (said := observed.get("verdict", "")) is not None else "nothing to prove",
        why=observed.get("why", ""),
    )


def differences(plain: Left, ours: Left) -> list[str]:
    """What is other under the launcher, a line each."""
    found = [] if ours.code == plain.code else [f"exit code {plain.code} alone, {ours.code} here"]
    if bool(plain.state) != bool(ours.state):
        return [*found, f"state {'missing here' if plain.state else 'only here'}"]
    for name in sorted({*plain.state, *ours.state}):
        left, right = plain.state.get(name, "missing"), ours.state.get(name, "missing")
        if left != right:
            found.append(f"{name}: {left} alone, {right} here")
    if plain.files != ours.files:
        found.append(f"files: {dict(plain.files)} alone, {dict(ours.files)} here")
    for stream, left, right in (("stdout", plain.out, ours.out), ("stderr", plain.err, ours.err)):
        if stream == "stderr" and "Traceback" in left:  # whose first frames are those of what ran it
            left, right = _last_line(left), _last_line(right)
        before, own, after = right.partition(left) if left else (right, "", "")
        rest = [line for line in f"{before}{after}".splitlines() if line and not OURS.fullmatch(line)]
        if own != left or rest:
            found.append(f"{stream}: {left!r} alone, {right!r} here")
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if not OURS.fullmatch(line)]
    return lines[-1] if lines else ""
