"""The scripts of tests/scripts as their users call them, and what they printed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "scripts"


ENDLESS = 1_000_000
"""Steps of a run that is to be stopped in the middle."""


class Script(NamedTuple):
    """A script and its ways."""

    file: str
    steps: str
    """The argument that says how long it trains, before the number."""
    short: int
    """In `steps`, so that it ends by itself soon."""
    arguments: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    """What lets it go on with its own checkpoint."""
    levels: str = "o0,o1"
    per_epoch: int = 1
    """Optimizer steps in one of `steps`."""
    libraries: tuple[str, ...] = ()
    """What it imports that takes longer to import than it trains."""

    def further(self, step: int) -> str:
        """The value of `script.resume_arguments` with which it ends soon after that step."""
        return f"[{','.join([*self.resume, f'{self.steps}{step // self.per_epoch + self.short}'])}]"


LIBRARIES = ("lightning", "transformers.trainer", "accelerate")
TRAINER = (
    *("--output_dir", "out", "--learning_rate", "1e-2", "--per_device_train_batch_size", "32", "--dropout", "0"),
    *("--logging_steps", "10", "--save_steps", "500", "--report_to", "none", "--use_cpu", "--enable_jit_checkpoint"),
)
SCRIPTS = {
    "torch": Script("plain.py", "--steps=", 100, resume=("--resume", "auto")),
    "lightning": Script("lit.py", "--steps=", 100, libraries=LIBRARIES),
    "trainer": Script(
        *("hf_trainer.py", "--max_steps=", 60, TRAINER, ("--resume_from_checkpoint", "last")), libraries=LIBRARIES
    ),
    "accelerate": Script(
        *("accelerated.py", "--max_train_steps=", 100, (), ("--resume_from_checkpoint", "latest")), libraries=LIBRARIES
    ),
    "hydra": Script("hydra_app/train.py", "steps=", 100, resume=("resume=true",)),
    "keras": Script("keras_fit.py", "--epochs=", 3, levels="o0,o2", per_epoch=29),
    "gan": Script("gan.py", "--steps=", 150, resume=("--resume",)),
}


def copied(folder: Path) -> Path:
    """The scripts in a folder outside of any checkout."""
    return Path(shutil.copytree(FOLDER, folder / "project"))


def folders(root: Path) -> list[Path]:
    """Of the runs there."""
    return sorted(path for path in root.iterdir() if (path / "plan.json").exists())


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


def printed(folder: Path, attempt: int = 1) -> list[tuple[int, float]]:
    """Steps and losses, as the script printed them in an attempt."""
    log = folder / f"attempts/{attempt}/stdout.log"
    text = log.read_text() if log.exists() else ""
    return [(int(step), float(loss)) for step, loss in re.findall(r"\bstep (\d+) loss (\S+)", text)]


def goes_on(folder: Path) -> bool:
    """Whether the steps of the second attempt follow those of the first, but for what was not saved."""
    (before, _), (after, _) = printed(folder)[-1], printed(folder, 2)[0]
    return before - 50 < after <= before + 100
