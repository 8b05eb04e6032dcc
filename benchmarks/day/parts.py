"""The parts of the day, in order, each in processes of its own and with plain Python beside it where it trains."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.day import machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CANARIES = ("products", "convolutions", "attention", "compiled")
STOPS = 60.0
"""Seconds within which a run ends once one of its ranks was killed."""
LEVELS = ("amp=o0", "amp=o1", "amp=o2", "amp=fp8")
PROCESSES = 3
"""Of the thorough day's rows."""
THOROUGH = 1800.0
"""Seconds for one of them."""
AGREE = 0.05
"""Relative gap of the last losses of a level and of o0: on an H200 up to 0.02 after 60 steps."""


class LeftOut(Exception):
    """A part that this machine can't have; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """Where and how the parts run."""

    device: str
    tiny: bool
    """A rehearsal: sizes for any machine."""
    thorough: bool
    folder: Path
    """What a user can send back."""
    home: Path
    """The runs of the day, deleted at its end."""

    def python(self, *words: str, seconds: float = 300, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments; its own exit code, 124 where it took longer."""
        environment = {**os.environ, "XDG_STATE_HOME": str(self.home / "state"), **environ}
        argv = [sys.executable, *words]
        try:
            return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            out, err = (text.decode(errors="replace") if text else "" for text in (error.stdout, error.stderr))
            return subprocess.CompletedProcess(argv, 124, out, f"{err}\nnot done in {seconds:.0f} s")

    def launcher(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher; the run root stands before the arguments of a script."""
        own = words.index("--") if "--" in words else len(words)
        root = f"run_root={self.home / 'runs'}"
        return self.python("-m", "launcher", *words[:own], root, *words[own:], **environ)

    def result(self, name: str) -> dict[str, Any]:
        """result.json of the run of that name; empty without one."""
        for plan in sorted((self.home / "runs").glob("*/plan.json"), reverse=True):
            path = plan.with_name("result.json")
            if json.loads(plan.read_text())["name"] == name and path.exists():
                values: dict[str, Any] = json.loads(path.read_text())
                return values
        return {}

    def folder_of(self, run: str) -> Path:
        return self.home / "runs" / run


@dataclass(kw_only=True, slots=True)
class Check:
    """One thing that holds or doesn't, whatever a verdict says of it."""

    name: str
    passed: bool | None
    """None where it was left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """Their state just after it (`benchmarks.day.machine.state`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    letter: str
    about: str
    seconds: float
    """A generous estimate on a large GPU."""
    run: Callable[[Day], Iterator[Check]]


def parts() -> list[Part]:
    return [
        Part(letter="a", about="the machine", seconds=10, run=_machine),
        Part(letter="b", about="doctor, visible devices, two runs at once", seconds=60, run=_places),
        Part(letter="c", about="scripts, with plain Python beside them", seconds=150, run=_scripts),
        Part(letter="d", about="a fused optimizer in float16, overflow first", seconds=30, run=_overflow),
        Part(letter="e", about="kernels", seconds=110, run=_kernels),
        Part(letter="f", about="gpt at each level, eager and compiled", seconds=240, run=_gpt),
        Part(letter="g", about="stop, resume, and a rank that is killed", seconds=150, run=_ranks),
        Part(letter="h", about="a container", seconds=90, run=_container),
    ]


def _machine(day: Day) -> Iterator[Check]:
    build = machine.torch_build()
    (day.folder / "torch.json").write_text(json.dumps(build, indent=1) + "\n")
    yield Check(name="torch is built for these GPUs", passed=_is_built(build) if build["gpus"] else None, facts=build)
    if shutil.which("nvidia-smi") is None:
        raise LeftOut("no nvidia-smi here")
    try:
        (day.folder / "nvidia-smi.xml").write_text(machine.fixture(machine.asked("-q", "-x")))
        (day.folder / "topology.txt").write_text(machine.topology(machine.asked("topo", "-m")))
    except (OSError, subprocess.SubprocessError, ET.ParseError) as error:
        yield Check(name="nvidia-smi answers", passed=False, facts={"why": str(error)[:300]})
        return
    yield Check(name="nvidia-smi answers", passed=True)


def _is_built(build: dict[str, Any]) -> bool:
    """A GPU runs code of its own major generation, up to its minor one, and any PTX of an earlier one."""
    made = [(name.partition("_")[0], int("".join(filter(str.isdigit, name)))) for name in build["architectures"]]
    return all(
        any((kind == "sm" and code // 10 == major and code % 10 <= minor) or kind == "compute" for kind, code in made)
        for major, minor in build["capabilities"]
    )


def _places(day: Day) -> Iterator[Check]:
    done = day.launcher("doctor")
    yield Check(name="doctor", passed=done.returncode == 0, facts={"exit_code": done.returncode})
    if day.device == "cuda":
        done = day.launcher("plan", "amp=o1", CUDA_VISIBLE_DEVICES="0")
        yield Check(name="a plan keeps to the visible GPU", passed=done.returncode == 0, facts={})
    size = ("recipe=mnist", "amp=o1", "data=synthetic", "steps=20", *_one_gpu(day))
    first, second = (
        subprocess.Popen(
            [sys.executable, "-m", "launcher", *size, f"name={name}", f"run_root={day.home / 'runs'}"],
            cwd=ROOT,
            env={**os.environ, "XDG_STATE_HOME": str(day.home / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("race-1", "race-2")
    )
    codes = [process.communicate(timeout=300)[1] or process.returncode for process in (first, second)]
    gpus = [day.result(name).get("hardware", {}).get("uuid") for name in ("race-1", "race-2")]
    apart = None in gpus or gpus[0] != gpus[1]
    right = codes == [0, 0] and apart if day.device == "cpu" else 0 in codes and set(codes) <= {0, 2, 3} and apart
    yield Check(name="two runs share no GPU", passed=right, facts={"exit_codes": codes})


def _one_gpu(day: Day) -> list[str]:
    return ["gpus=1"] if day.device == "cuda" else ["device=cpu"]


def _scripts(day: Day) -> Iterator[Check]:
    if day.tiny:
        yield _beside(day, CANARIES[0], "o1", ("by-hand",))
        return
    for name in CANARIES:
        yield _beside(day, name, "o0", ())
        yield _beside(day, name, "o1", ("by-hand",))
    yield _beside(day, "inner", "o1", (), "train.precision=script")
    yield _beside(day, "inner", "o1", ("by-hand",))


def _overflow(day: Day) -> Iterator[Check]:
    yield _beside(day, "fused", "o1", (), "amp.dtype=float16", "train.precision=script")


def _beside(day: Day, name: str, level: str, by_hand: tuple[str, ...], *words: str) -> Check:
    """The script alone and under the launcher: the same losses and weights, to the last bit."""
    script = str(HERE / "canary.py")
    alone = day.python(script, name, day.device, *by_hand)
    run = f"{name}-{level}" + "-own" * ("train.precision=script" in words)
    under = day.launcher(script, f"amp={level}", *words, *_one_gpu(day), f"name={run}", "--", name, day.device)
    log = _log(day, run)
    same = alone.returncode == under.returncode == 0 and alone.stdout.splitlines() == log
    facts = {"alone": alone.returncode, "here": under.returncode, "verdict": _verdict(day.result(run))}
    if not same:
        facts |= {"lines": len(log), "first_other": _first_other(alone.stdout.splitlines(), log)}
    return Check(name=f"{run} computes what it does alone", passed=same, facts=facts)


def _log(day: Day, name: str) -> list[str]:
    """The lines that the script printed: numbers and a digest."""
    shown = day.launcher("logs", name).stdout.splitlines()
    return [line for line in shown if re.fullmatch(r"-?0x[\da-f.]+p[+-]\d+|-?inf|nan|[\da-f]{64}", line)]


def _first_other(one: list[str], other: list[str]) -> int | None:
    pairs = list(zip(one, other, strict=False))
    return next((number for number, (left, right) in enumerate(pairs) if left != right), len(pairs))


def _verdict(result: dict[str, Any]) -> str | None:
    verdict: str | None = (result.get("observed") or {}).get("verdict")
    return verdict


def _kernels(day: Day) -> Iterator[Check]:
    """With `--thorough` all rows, in three processes: what differs between them is no property of the GPU."""
    size = ("--tiny", "--device", "cpu") if day.tiny else () if day.thorough else ("--minutes", "2")
    only = () if day.thorough else ("--only", "check")
    names = [f"gpu-{number}.json" for number in range(1, 1 + PROCESSES)] if day.thorough else ["gpu.json"]
    for out in (day.folder / name for name in names):
        done = day.python("-m", "benchmarks.gpu", *only, *size, "--out", str(out), seconds=THOROUGH)
        yield Check(name="kernels and scalers", passed=done.returncode == 0, facts={"exit_code": done.returncode})
    if day.thorough:
        (day.folder / "spread.json").write_text(json.dumps(spread(day.folder), indent=1) + "\n")


def spread(folder: Path) -> list[dict[str, Any]]:
    """The values of each row in all processes, and the largest over the smallest."""
    rows: dict[tuple[str, str], list[float]] = {}
    for path in sorted(folder.glob("gpu-*.json")):
        for row in json.loads(path.read_text())["rows"]:
            if row["value"]:
                rows.setdefault((row["part"], row["name"]), []).append(row["value"])
    return [
        {"part": part, "name": name, "values": values, "spread": max(values) / min(values)}
        for (part, name), values in rows.items()
    ]


def _gpt(day: Day) -> Iterator[Check]:
    size = ("train.layers=1", "train.width=32", "train.heads=2", "train.context=32", "train.vocab_size=256")
    size = (*size, "train.held_out=4", "batch=4", "steps=12") if day.tiny else ("steps=60",)
    control: float | None = None
    compiled = (False,) if day.tiny else (False, True)
    for words in ((level, f"compile={str(how).lower()}") for how in compiled for level in LEVELS):
        if day.tiny and words[0] == "amp=fp8":
            yield Check(name=" ".join(words), passed=None, facts={"why": "fp8 is not on a CPU"})
            continue
        name = "gpt-" + "-".join(word.partition("=")[2] for word in words)
        done = day.launcher("recipe=gpt", *words, *size, *_one_gpu(day), "profile=framework", f"name={name}")
        result = day.result(name)
        last = (result.get("loss") or {}).get("last")
        control = last if control is None else control
        agrees = last is not None and control is not None and abs(last / control - 1) < AGREE
        facts = {
            "exit_code": done.returncode,
            "verdict": _verdict(result),
            "loss": last,
            "throughput": (result.get("throughput") or {}).get("median"),
            "gpu_busy_share": (result.get("throughput") or {}).get("gpu_busy_share"),
            "tensor_core_share": (result.get("profile") or {}).get("tensor_core_share"),
        }
        proved = done.returncode == 0 and facts["verdict"] == "proved"
        yield Check(name=" ".join(words), passed=proved and agrees, facts=facts)
        for trace in (day.home / "runs").glob("*/profile/*.pt.trace.json"):
            shutil.move(str(trace), str(day.folder / f"{name}.{trace.name}"))


def _ranks(day: Day) -> Iterator[Check]:
    yield _resumed(day)
    for how, place in _places_of_ranks(day).items():
        batch, some = ("batch=4", 6) if day.tiny else ("batch=64", 30)
        words = ("recipe=mnist", "amp=o2", "data=synthetic", batch, "steps=20000", f"checkpoint.every={some}", *place)
        with _started(day, *words) as run:
            _wait(day, run, some)
            stopped = day.launcher("cancel", run)
            state = _ended(day, run)
            saved = any(day.folder_of(run).glob("checkpoints/step-*"))
            right = state in ("stopped", "cancelled") and saved
            yield Check(name=f"{how}: stops with its state saved", passed=right, facts={"state": state, "saved": saved})
            before = _steps(day, run)
            day.launcher("resume", run, "detach=true")
            _wait(day, run, before + some)
            ranks = _processes(run)
            began = time.monotonic()
            os.kill(max(ranks), signal.SIGKILL)
            state, took = _ended(day, run), time.monotonic() - began
            left = _processes(run)
            facts = {"state": state, "seconds": took, "processes_left": len(left), "cancel": stopped.returncode}
            right = state == "failed" and took < STOPS and not left
            yield Check(name=f"{how}: ends when a rank is killed, and leaves nothing", passed=right, facts=facts)


def _places_of_ranks(day: Day) -> dict[str, tuple[str, ...]]:
    """Two GPUs where there are two, else one process."""
    import torch

    if day.device == "cpu":
        return {"ddp": ("device=cpu",)}
    if torch.cuda.device_count() > 1:
        return {how: ("gpus=2", f"parallel={how}") for how in ("ddp", "fsdp")}
    return {"one GPU": ("gpus=1",)}


def _resumed(day: Day) -> Check:
    """A run that was stopped and resumed has the losses of one that was not, to the last bit."""
    words = ("recipe=mnist", "amp=o2", "amp.dtype=float16", "data=synthetic", "deterministic=true")
    # On a CPU a step in float16 can take a second.
    steps, batch, every = (10, 4, 3) if day.tiny else (3000, 64, 20)
    words = (*words, f"steps={steps}", f"batch={batch}", f"checkpoint.every={every}", *_one_gpu(day))
    whole = day.launcher(*words, "name=whole")
    with _started(day, *words, "name=parted") as run:
        _wait(day, run, every + 1)
        day.launcher("cancel", run)
        state = _ended(day, run)
        day.launcher("resume", run)
    one, other = (_losses(day, name) for name in ("whole", "parted"))
    facts = {"exit_code": whole.returncode, "state": state, "losses": len(one), "first_other": _first_other(one, other)}
    right = len(one) == len(other) == steps and one == other
    return Check(name="a resumed run has the losses of one that was not stopped", passed=right, facts=facts)


def _losses(day: Day, name: str) -> list[str]:
    """The loss of each step, as written in the metrics of the run of that name."""
    found: list[str] = []
    for plan in (day.home / "runs").glob("*/plan.json"):
        rows = plan.with_name("metrics.jsonl")
        if json.loads(plan.read_text())["name"] == name and rows.exists():
            found = [str(row["loss"]) for row in map(json.loads, rows.read_text().splitlines()) if "loss" in row]
    return found


@contextlib.contextmanager
def _started(day: Day, *words: str) -> Iterator[str]:
    done = day.launcher(*words, "detach=true")
    run = done.stdout.split()[0] if done.returncode == 0 else ""
    if not run:
        raise RuntimeError(f"it was not started: {done.stderr[-300:]}")
    try:
        yield run
    finally:
        for process in _processes(run):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def _processes(run: str) -> list[int]:
    """Trainers of a run: processes whose environment names it, and that have an attempt's own."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            environ = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
            if f"LAUNCHER_RUN_ID={run}".encode() in environ and b"train_torch" in command:
                found.append(int(entry.name))
    return found


def _steps(day: Day, run: str) -> int:
    rows = day.folder_of(run) / "metrics.jsonl"
    return rows.read_text().count('{"step"') if rows.exists() else 0


def _wait(day: Day, run: str, enough: int, seconds: float = 180) -> None:
    """Until the run's metrics have so many steps."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _steps(day, run) >= enough:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{run} took too few steps in {seconds:.0f} s")


def _ended(day: Day, run: str, seconds: float = 120) -> str:
    """The state of a run, once it ended or the time is over."""
    end, state = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        values = json.loads(day.launcher("ls", run, "--json").stdout or "{}")
        state = values.get("state", "")
        if values.get("finished"):
            break
        time.sleep(0.5)
    return state


def _container(day: Day) -> Iterator[Check]:
    engine = next((name for name in ("docker", "podman", "apptainer") if shutil.which(name)), None)
    if engine is None or day.device != "cuda":
        raise LeftOut("no container engine here" if engine is None else "a rehearsal has no image")
    listed = day.launcher("image", "list")
    if "ngc-pytorch" not in listed.stdout or not _is_here(engine):
        raise LeftOut("no NGC image of PyTorch is here; this pulls none")
    done = day.launcher("amp=o2", "steps=40", f"container={engine}", "image=ngc-pytorch", *_one_gpu(day), "name=ngc")
    verdict = _verdict(day.result("ngc"))
    right = done.returncode == 0 and verdict == "proved"
    yield Check(name=f"o2 in an NGC image by {engine}", passed=right, facts={"verdict": verdict})


def _is_here(engine: str) -> bool:
    if engine == "apptainer":
        return False  # its images are files, wherever they lie
    listed = subprocess.run([engine, "images", "--format", "{{.Repository}}"], capture_output=True, text=True)
    return any(name.endswith("nvidia/pytorch") for name in listed.stdout.splitlines())
