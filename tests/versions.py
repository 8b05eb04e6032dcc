"""`make versions`: the wheel on each Python that it is for, with the oldest packages that it takes and the newest.

Not part of the gate: it downloads gigabytes. In each environment, made by uv, the wheel lies beside torchtune's, which
has a package `recipes` too, and is run from a folder that has `recipes`, `containers` and `conf` of its own. The last
environment has no framework, as a laptop that only submits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OLDEST = "3.10"
SCRIPT = """\
import torch
from recipes import NAME
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    net(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
print(NAME)
"""
SHORT = ("data=synthetic", "steps=12", "batch=64", "device=cpu")
RUNS = {
    "--help": (("--help",), "exit codes:"),
    "completion": (("-sc", "install=bash"), "complete"),
    "plan": (("plan", "amp=o2"), "amp_launcher.recipes.mnist.train_torch"),
    "mnist at o2": (("amp=o2", *SHORT), "proved: bfloat16 in 100.0% of forward"),
    "a script at o1": (("train.py", "amp=o1", "device=cpu"), "proved: bfloat16 in 100.0% of forward"),
    "its own recipes": (("train.py", "amp=o0", "device=cpu"), "theirs"),
}
"""What is typed, and what the screen has to show."""
WITHOUT_TORCH = {
    **{name: RUNS[name] for name in ("--help", "completion")},
    "every key": (("run", "--help"), "amp.master_weights"),
}


def main() -> int:
    if not shutil.which("uv"):
        print("uv is needed, which makes the environments: pip install uv", file=sys.stderr)
        return 2
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = _built(folder)
        _strange(folder / "project")
        for python in PYTHONS:
            packages = [f"amp-launcher[torch] @ file://{wheel}", "torchtune"]
            failed += _tried(f"Python {python}, newest", folder, python, packages, RUNS)
        lowest = ["--resolution", "lowest-direct", "-r", str(REPOSITORY / "pyproject.toml"), "--extra", "torch"]
        failed += _tried(f"Python {OLDEST}, oldest", folder, OLDEST, lowest, RUNS, wheel)
        packages = [f"amp-launcher @ file://{wheel}"]
        failed += _tried("without a framework", folder, PYTHONS[-1], packages, WITHOUT_TORCH)
    return 1 if failed else 0


def _built(folder: Path) -> Path:
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(REPOSITORY)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _strange(project: Path) -> None:
    """A project with folders of our names."""
    for name in ("recipes", "containers"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("NAME = 'theirs'\n")
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("theirs: 1\n")
    (project / "train.py").write_text(SCRIPT)


def _tried(
    what: str,
    folder: Path,
    python: str,
    packages: list[str],
    runs: dict[str, tuple[tuple[str, ...], str]],
    wheel: Path | None = None,
) -> int:
    """Print how each run ended in a fresh environment, and return how many failed."""
    place = folder / "environment"
    installed = [("pip", "install", "--quiet", "--python", str(place / "bin/python"), *packages)]
    if wheel is not None:  # its dependencies are those of the file
        installed.append(("pip", "install", "--quiet", "--no-deps", "--python", str(place / "bin/python"), str(wheel)))
    for words in (("venv", "--quiet", "--clear", "--python", python, str(place)), *installed):
        done = subprocess.run(["uv", *words], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{what}: uv {words[0]} failed\n{done.stderr}", flush=True)
            return 1
    failed = 0
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LAUNCHER_"))}
    for name, (words, shown) in runs.items():
        argv = [str(place / "bin/amp-launcher"), *words]
        if words[0] in ("plan", "train.py") or words[0].startswith("amp="):
            argv.append(f"run_root={folder / 'runs'}")
        done = subprocess.run(argv, cwd=folder / "project", env=environ, capture_output=True, text=True)
        good = done.returncode == 0 and shown in done.stdout + done.stderr
        failed += not good
        print(f"{what}: {name}: {'works' if good else 'FAILED'}", flush=True)
        if not good:
            print(f"exit code {done.returncode}; {shown!r} was wanted in\n{done.stdout}{done.stderr}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
