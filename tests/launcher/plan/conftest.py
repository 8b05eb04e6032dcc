"""Runs on GPUs of a shared host: real locks and processes; only `nvidia-smi` and the trainer are programs of ours.
And the snapshot of a user's script."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.code import code_store
from launcher.executors import submission
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.probe import gpu_locks, gpu_probing, torch_build
from launcher.probe.facts import Facts
from launcher.runs import processes, selection
from tests.launcher import fake_gpus
from tests.launcher.fake_gpus import FakeGpus
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import until
from tests.testbed.facts import Testbed

SHOW = "open(sys.argv[-1][4:] + '/seen', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
STAY = f"{SHOW}; time.sleep(600)"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """Three GPUs, which nobody is on."""
    made = fake_gpus.make(tmp_path / "driver", 3)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(torch_build, "read", lambda python: None)  # it would import torch anew for each test
    yield made
    made.close()


@pytest.fixture
def open_cards(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """The same, which another user can ask about too."""
    with tempfile.TemporaryDirectory(dir=testbed.shared) as folder:
        os.chmod(folder, 0o755)
        made = fake_gpus.make(Path(folder, "driver"), 1)
        monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
        yield made
        made.close()


@pytest.fixture
def bench(cards: FakeGpus, root: Path, program: Path) -> Bench:
    return Bench(root, program)


class Bench:
    """Runs on this machine whose trainer is a program of ours."""

    def __init__(self, root: Path, program: Path) -> None:
        self.root = root
        self.program = program

    def facts(self) -> Facts:
        gpus, problem = gpu_probing.listed()
        assert problem == ""
        return dataclasses.replace(
            LAPTOP, gpus=gpu_probing.with_holders(gpus), run_root=str(self.root), python=str(self.program)
        )

    def plan(self, *words: str, does: str = STAY, facts: Facts | None = None) -> Plan:
        plan = resolve(spec_of("batch=144", *words), facts or self.facts())
        code_store.store(self.root / ".code", plan.code, {})
        dump = str(self.root.parent / "dump")
        return dataclasses.replace(plan, env={**plan.env, "DUMP": dump, "BEHAVIOUR": does}, processes=1)

    def start(self, *plans: Plan) -> list[Path]:
        return submission.submit(plans, {"schema": 1})

    def run(self, *words: str, **more: Any) -> Path:
        """One run, started, which has its GPUs."""
        (folder,) = self.start(self.plan(*words, **more))
        return folder

    @property
    def until_go(self) -> str:
        """A trainer that runs until `go`."""
        return f"{SHOW}; [time.sleep(0.02) for _ in iter(lambda: os.path.exists({str(self.root / 'go')!r}), True)]"

    def go(self) -> None:
        (self.root / "go").touch()

    def folders(self) -> list[Path]:
        return [self.root / name for name in sorted(selection.run_names(str(self.root)))]


def bash(text: str) -> subprocess.CompletedProcess[str]:
    """Lines of bash after the functions that take GPUs."""
    argv = ["bash", "-c", f"set -u\n{gpu_locks.functions()}\n{text}"]
    return subprocess.run(argv, capture_output=True, text=True)


def seen(folder: Path) -> str:
    """The devices that the trainer of a run saw."""
    return str(until(lambda: (folder / "seen").exists() and (folder / "seen").read_text()))


def kill(shell: int, run: str) -> None:
    """All of a run at once, as nothing but the kernel would end it."""
    for process in processes.processes_of([processes.Target(processes.identity(shell), run)])[0]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def nobody_is_on_any() -> bool:
    return {entry.holder for entry in gpu_locks.states()} == {""}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot with the script, in which its wrapper starts."""
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path
