"""`make versions`: the wheel on each Python that it is for, with the oldest packages that it takes and the newest.

Not part of the gate: it downloads gigabytes. In each environment, made by uv, the wheel lies beside torchtune's, which
has a package `recipes` too, and is run from a folder that has `recipes`, `containers` and `conf` of its own. The last
environments are those that `uv tool` and pipx make, with no framework, as on a laptop that only submits: to a host over
SSH that has one, where the testbed is up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.testbed import bed, facts

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
    "mnist at o2": (("amp=o2", "name=twelve", *SHORT), "proved: bfloat16 in 100.0% of forward"),
    "a script at o1": (("train.py", "amp=o1", "device=cpu"), "proved: bfloat16 in 100.0% of forward"),
    "its own recipes": (("train.py", "amp=o0", "device=cpu"), "theirs"),
}
"""What is typed, and what the screen has to show."""
EXTRAS = ("torch", "ssh", "images", "export", "tensorboard", "mlflow", "wandb")
OF_EXTRAS = {
    "images": (("image", "render", "pytorch"), "FROM nvcr.io"),
    "weights": (("export", "twelve", "w.safetensors"), "step 12 of"),
    **{name: (("export", "twelve", f"to={name}"), "values of") for name in ("tensorboard", "mlflow", "wandb")},
}
"""What is typed after `RUNS` where all extras are installed."""
TOOLS = {
    "uv tool": ("uv", "tool", "install", "--python", PYTHONS[-1]),
    "pipx": ("uv", "tool", "run", "pipx", "install", "--python", sys.executable),
}
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
        lowest = ["--resolution", "lowest-direct", "-r", str(REPOSITORY / "pyproject.toml")]
        lowest += [f"--extra={name}" for name in EXTRAS]
        failed += _tried(f"Python {OLDEST}, oldest", folder, OLDEST, lowest, {**RUNS, **OF_EXTRAS}, wheel)
        for how in TOOLS:
            failed += _on_a_laptop(how, folder, wheel)
    return 1 if failed else 0


def _on_a_laptop(how: str, folder: Path, wheel: Path) -> int:
    """Install the command alone, as a person does, and submit from there. Returns how many things failed."""
    place = folder / how
    places = {"UV_TOOL_DIR": "", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "", "PIPX_BIN_DIR": "bin"}
    environ = {**_environ(folder), **{name: str(place / end) for name, end in places.items()}}
    argv = [*TOOLS[how], f"amp-launcher[ssh] @ file://{wheel}"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{how}: not installed\n{done.stderr}", flush=True)
        return 1
    runs, there = dict(WITHOUT_TORCH), facts.gather(bed.find())
    if there is None or not there.up:
        print(f"{how}: no testbed is up to submit to", flush=True)
        return _typed(how, place / "bin/amp-launcher", folder, runs)
    far = tempfile.mkdtemp(prefix="laptop-", dir=there.user.home)
    os.chown(far, there.user.uid, there.user.gid)
    host = ("cluster=ssh", "cluster.host=testbed", f"cluster.ssh_config={there.ssh.config}", f"python={there.python}")
    words = (*host, f"run_root={far}", "device=cpu", "wait=true")
    runs["a recipe over SSH"] = (("recipe=simplenet", "amp=o2", "steps=3", "batch=16", *words), "proved: bfloat16")
    runs["a script over SSH"] = (("train.py", "amp=o1", *words), "proved: bfloat16")
    try:
        return _typed(how, place / "bin/amp-launcher", folder, runs)
    finally:
        shutil.rmtree(far, ignore_errors=True)


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
    return _typed(what, place / "bin/amp-launcher", folder, runs)


def _environ(folder: Path) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LAUNCHER_"))}
    return {
        **environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


def _typed(what: str, command: Path, folder: Path, runs: dict[str, tuple[tuple[str, ...], str]]) -> int:
    """Type each of these words in the strange project. Returns how many did not end as they should."""
    failed, environ = 0, _environ(folder)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    for name, (words, shown) in runs.items():
        argv = [str(command), *words]
        if words[0] in ("plan", "train.py", "export", "amp=o2") and not any("run_root=" in word for word in words):
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
