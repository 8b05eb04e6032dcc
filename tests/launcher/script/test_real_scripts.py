"""Scripts as people bring them (tests/scripts), untouched: each launched and proved at the levels that it can have."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[3]
SCRIPTS = CHECKOUT / "tests" / "scripts"


class Script(NamedTuple):
    """A script of tests/scripts, and how its users call it."""

    file: str
    words: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    levels: str = "o0,o1"


TRAINER = (
    *("--output_dir", "out", "--max_steps", "60", "--learning_rate", "1e-2", "--per_device_train_batch_size", "32"),
    *("--logging_steps", "10", "--save_steps", "20", "--report_to", "none", "--use_cpu"),
)
REAL = {
    "torch": Script("plain.py"),
    "lightning": Script("lit.py"),
    "trainer": Script("hf_trainer.py", arguments=(*TRAINER, "--dropout", "0")),
    "accelerate": Script("accelerated.py"),
    "hydra": Script("hydra_app/train.py"),
    "keras": Script("keras_fit.py", ("framework=tensorflow",), levels="o0,o1,o2"),
    "gan": Script("gan.py"),
}
each_script = pytest.mark.parametrize("name", REAL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of scripts outside of any checkout."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project"))


def launcher(project: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "launcher", f"run_root={root}", *words]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=240)


def results(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob("[0-9]*/result.json"))]


def losses(folder: Path) -> list[float]:
    """What the script printed."""
    text = "".join(path.read_text() for path in sorted(folder.glob("attempts/*/stdout.log")))
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)", text, re.MULTILINE)]


@pytest.mark.slow
@each_script
def test_it_trains_and_is_proved_at_each_level_that_it_can_have(project: Path, root: Path, name: str) -> None:
    script = REAL[name]
    words = ("recipe=script", f"script={script.file}", f"amp={script.levels}", "workdir=run", *script.words)
    done = launcher(project, root, *words, "env.OMP_NUM_THREADS=1", "--", *script.arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(root)
    assert {each["requested"]["amp"]: each["observed"]["verdict"] for each in found} == dict.fromkeys(
        script.levels.split(","), "proved"
    )
    for each in found:
        printed = losses(root / each["run"])
        assert printed[-1] < 0.9 * printed[0]
    assert sorted(path.name for path in project.iterdir()) == sorted(path.name for path in SCRIPTS.iterdir())
