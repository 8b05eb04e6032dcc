"""hydra-submitit-launcher, in an environment of its own, timed until Slurm has accepted what it submits."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
import venv
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import Skipped
from benchmarks.places import OUT, PEERS
from launcher.config.paths import conf_folder

VERSION = "1.2.0"
PATIENCE = 600.0


def python() -> str:
    """The Python of a virtual environment that has it, made on first use in benchmarks/out/. Raises `Skipped`."""
    place = OUT / f"hydra-submitit-launcher-{VERSION}"
    interpreter = place / "bin/python"
    if not (place / "complete").exists():
        venv.create(place, with_pip=True, clear=True)
        constraints = PEERS.parent.parent / "constraints.txt"
        argv = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*argv, "--constraint", str(constraints), f"hydra-submitit-launcher=={VERSION}"],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Skipped(f"hydra-submitit-launcher can't be installed: {done.stderr.strip()[-500:]}")
        (place / "complete").touch()
    return str(interpreter)


class Sweep:
    """Its submissions of an application whose job does nothing, over our own configuration, held in the queue.

    It stays until its jobs have ended, so the time is taken when its sbatch returns, of which a wrapper tells through
    a named pipe; then it is killed.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], name: str) -> None:
        folder.mkdir()
        sbatch = shutil.which("sbatch", path=environment["PATH"])
        if sbatch is None:
            raise Skipped("there is no sbatch on this machine")
        self._folder = folder
        self._pipe = folder / "accepted"
        os.mkfifo(self._pipe)
        wrapper = folder / "bin/sbatch"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\n{sbatch} "$@"\ncode=$?\necho $code >"{self._pipe}"\nexit $code\n')
        wrapper.chmod(0o700)
        path = f"{wrapper.parent}:{environment['PATH']}"
        self._environment = {**environment, "PATH": path, "CONF": str(conf_folder())}
        self._argv = [
            python(),
            str(PEERS / "hydra_sweep.py"),
            "--multirun",
            "hydra/launcher=submitit_slurm",
            f"hydra.launcher.name={name}",
            "hydra.launcher.timeout_min=5",
            "+hydra.launcher.additional_parameters.hold=true",
        ]

    def until_accepted(self, *words: str) -> float:
        """Seconds from its start to the return of its sbatch. Raises `RuntimeError` where that failed."""
        # Open for writing too: so opening it waits for nobody, and it is never at its end.
        pipe = os.open(self._pipe, os.O_RDWR)
        began = time.perf_counter()
        running = subprocess.Popen(
            [*self._argv, *words],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            while not select.select([pipe], [], [], 1.0)[0]:
                if running.poll() is not None or time.perf_counter() - began > PATIENCE:
                    raise RuntimeError(f"hydra-submitit-launcher submitted nothing: {running.communicate()[1][-2000:]}")
            seconds = time.perf_counter() - began
            if (code := os.read(pipe, 16).strip()) != b"0":
                raise RuntimeError(f"hydra-submitit-launcher's sbatch ended with exit code {code.decode()}")
            return seconds
        finally:
            running.kill()
            running.communicate()
            os.close(pipe)
