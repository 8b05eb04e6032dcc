"""A row alone and under the launcher, and what each left."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import places
from benchmarks.scripts import environments
from benchmarks.scripts.table import Row

LIMIT = 900
"""Seconds that one process may take."""
ENVIRON = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""Nothing is downloaded; hashes are the same; and one thread, so that times mean something on a busy machine."""
MODES = {"o0": ["amp=o0"], "o1": ["amp=o1"], "script": ["amp=o1", "train.precision=script"]}
CLONE = Path(__file__).parents[2]
IGNORED = (".git", "__pycache__")


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What a process of a row left."""

    code: int
    losses: Sequence[str]
    files: Mapping[str, str]
    """Digests of the files that it wrote where it started, by name."""
    seconds: float
    verdict: str = ""
    why: str = ""
    said: str = ""
    """Its last line on stderr."""
    torch: str = ""


def row(row: Row, folder: Path) -> dict[str, Any]:
    """Run it in every mode. Raises `environments.Unavailable`."""
    python = environments.python(row, folder)
    source = environments.source(row, python, folder)
    runner = _Runner(row=row, python=python, source=source)
    if row.modes:
        return _with_calls(row, runner)
    alone, again = runner.run("alone"), runner.run("again")
    if alone.code or not alone.losses:
        what = f"exit code {alone.code}: {alone.said}" if alone.code else f"no line holds {row.losses!r}"
        raise environments.Unavailable(f"alone: {what}")
    modes = {"o0": _entry(row, alone, again, runner.run("o0"))}
    under = runner.run("o1")
    modes["o1"] = _entry(row, alone, None, under)
    if row.own:
        alone, again = runner.run("own-alone"), runner.run("own-again")
        if alone.code:
            raise environments.Unavailable(f"alone in its own mode: exit code {alone.code}: {alone.said}")
        modes["script"] = _entry(row, alone, again, runner.run("script"))
    return {"version": row.source, "torch": under.torch, "seconds": round(alone.seconds, 1), "modes": modes}


def _with_calls(row: Row, runner: _Runner) -> dict[str, Any]:
    """A script that makes the calls of a precision: in each mode alone, under the launcher, and resumed there."""
    modes: dict[str, Any] = {}
    for mode in row.modes:
        alone, again = (runner.run(f"{mode}-{which}", mode=mode) for which in ("alone", "again"))
        if alone.code or not alone.losses:
            raise environments.Unavailable(f"alone at {mode}: exit code {alone.code}: {alone.said}")
        under = runner.run(mode, mode=mode)
        short = runner.run(f"{mode}-short", mode=mode, more=row.halves[0], keep=True)
        resumed = runner.run(f"{mode}-resumed", mode=mode, more=row.halves[1])
        entry = _entry(row, alone, again, under)
        found = resumed_differently(under, short, resumed)
        entry["differences"] += found
        modes[mode] = entry | {
            "same": not entry["differences"],
            "compared": f"{entry['compared']}, {0 if found else len(resumed.losses)} losses after its resume",
        }
    return {"version": row.source, "torch": under.torch, "seconds": round(alone.seconds, 1), "modes": modes}


def resumed_differently(whole: Left, short: Left, resumed: Left) -> list[str]:
    """What is other in a run that was cut short and resumed: its losses have to be the last ones of the whole run."""
    if short.code or resumed.code:
        return [f"cut short it ends with exit code {short.code}, resumed with {resumed.code}: {resumed.said}"]
    for one in (short, resumed):
        if one.verdict != whole.verdict:
            return [f"the verdict is {whole.verdict}, cut short {short.verdict}, resumed {resumed.verdict}"]
    count = len(resumed.losses)
    if not 0 < count < len(whole.losses):
        return [f"{count} losses after the resume, {len(whole.losses)} in the whole run"]
    for number, (ours, theirs) in enumerate(zip(resumed.losses, whole.losses[-count:], strict=True), start=1):
        if ours != theirs:
            return [f"loss {number} of {count} after the resume: {ours}, without it {theirs}"]
    return []


def _entry(row: Row, alone: Left, again: Left | None, ours: Left) -> dict[str, Any]:
    found = differences(alone, again, ours)
    return {
        "same": not found,
        "differences": found,
        "compared": _compared(row, alone, again),
        "code": ours.code,
        "said": ours.said if ours.code != alone.code else "",
        "verdict": ours.verdict,
        "why": ours.why,
        "ratio": round(ours.seconds / alone.seconds, 2),
    }


def differences(alone: Left, again: Left | None, ours: Left) -> list[str]:
    """What is other under the launcher; without `again`, in another precision, only how it ends."""
    found = [] if ours.code == alone.code else [f"exit code {ours.code}, alone {alone.code}"]
    if again is None:
        if len(ours.losses) != len(alone.losses):
            found.append(f"{len(ours.losses)} losses, alone {len(alone.losses)}")
        broken = [loss for loss in ours.losses if not math.isfinite(float(loss))]
        return [*found, *(f"a loss of {loss}" for loss in broken[:1])]
    if alone.losses == again.losses and alone.losses != ours.losses:
        at = next((n for n, (a, b) in enumerate(zip(alone.losses, ours.losses, strict=False)) if a != b), None)
        found.append(
            f"{len(ours.losses)} losses, alone {len(alone.losses)}"
            if at is None
            else f"loss {at + 1} of {len(alone.losses)}: {ours.losses[at]}, alone {alone.losses[at]}"
        )
    stable = _stable(alone, again)
    found += [
        f"{name} {'differs' if name in ours.files else 'is missing'}"
        for name in stable
        if ours.files.get(name) != alone.files[name]
    ]
    if alone.files.keys() == again.files.keys():
        found += [f"{name} only here" for name in ours.files if name not in alone.files]
    return found


def _stable(alone: Left, again: Left) -> list[str]:
    """The files that the script wrote twice alone with the same content."""
    return [name for name, digest in alone.files.items() if again.files.get(name) == digest]


def _compared(row: Row, alone: Left, again: Left | None) -> str:
    if again is None:
        return ""
    stable = _stable(alone, again)
    losses = f"{len(alone.losses)} losses" if alone.losses == again.losses else "no losses, which differ alone"
    weights = sum(Path(name).match(row.weights) for name in stable) if row.weights else 0
    files = f"{len(stable)} of {len(alone.files)} files" if alone.files else "no files"
    return f"{losses}, {files}{f', {weights} of weights' if row.weights else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Runner:
    row: Row
    python: Path
    source: Path

    def run(self, how: str, *, mode: str = "", more: Sequence[str] = (), keep: bool = False) -> Left:
        """Run it `alone`, or in a mode of `MODES`, always in the same folder, so that paths are the same.

        With the calls of a precision: in `mode`, by them alone where `how` ends so, with `more` arguments; `keep`
        leaves the folder for the next run.
        """
        row, home = self.row, self.source.parent
        own = row.own if how in ("own-alone", "own-again", "script") else {}
        at = home / "at"
        if not at.exists():
            shutil.copytree(self.source, at, symlinks=True)
        script = environments.site_packages(self.python) / row.script if row.package else Path(row.script)
        arguments = [*map(str, row.arguments), *map(str, own.get("arguments", ())), *map(str, more)]
        runs = home / f"runs-{how}"
        calls = {"PYTHONPATH": str(CLONE), "PRECISION": mode} if mode else {}
        if how in MODES or (mode and not how.endswith(("-alone", "-again"))):
            words = [
                str(script),
                *([f"amp={mode}"] if mode else MODES[how]),
                f"python={self.python}",
                f"run_root={runs}",
            ]
            argv = [*places.launcher(*words), "--", *arguments]
        else:
            argv = [str(self.python), str(script), *arguments]
        environ = places.environment(home, **{**ENVIRON, **calls, **row.environ, **own.get("environ", {})})
        before = _digests(at)
        began = time.monotonic()
        code = _run(argv, at / row.folder, environ, home / how)
        seconds = time.monotonic() - began
        after = _digests(at)
        result, said = {}, home / f"{how}.stderr"
        logs = [home / f"{how}.stdout", said]
        for run in sorted(runs.glob("*/result.json")):
            result = json.loads(run.read_text(encoding="utf-8"))
            logs = sorted(run.parent.glob("attempts/1/*.log"))
        text = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in reversed(logs))
        if not keep:
            at.rename(home / f"at-{how}")
        observed = result.get("observed") or {}
        return Left(
            code=code,
            losses=re.findall(row.losses, text),
            files={name: digest for name, digest in after.items() if before.get(name) != digest},
            seconds=seconds,
            verdict=observed.get("verdict", ""),
            why=observed.get("why") or "",
            said=(said.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1].replace(
                str(home.parent), "DIR"
            )[:300],
            torch=(result.get("versions") or {}).get("torch") or "",
        )


def _run(argv: list[str], cwd: Path, environ: Mapping[str, str], stem: Path) -> int:
    """Run it with its output in files; its exit code. Past the limit it is interrupted, then killed."""
    with open(f"{stem}.stdout", "wb") as out, open(f"{stem}.stderr", "wb") as err:
        process = subprocess.Popen(
            argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        for sign, seconds in ((None, LIMIT), (signal.SIGINT, 60), (signal.SIGKILL, None)):
            if sign:
                os.killpg(process.pid, sign)
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
    return process.wait()


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(IGNORED) & set(path.relative_to(folder).parts)
    }
