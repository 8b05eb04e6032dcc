"""Every block of README and docs is run, or says above it what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import submitit  # noqa: F401 (first: its import closes all handlers of logging)

from launcher.__main__ import main
from launcher.config.request import compose, split_flags, to_specs
from launcher.executors import backends
from launcher.runs import run_files, run_roots, selection
from tests import doc_blocks, doc_python
from tests.doc_blocks import BLOCKS, ROOT, Block, run, smaller, verb_of
from tests.launcher import warm
from tests.testbed.facts import Testbed

ELSEWHERE = re.compile(r"cluster[.=]|container[.=]|shell desk|down desk|hydra/launcher")
MARKED = [block for block in BLOCKS if block.lacks]
COMMANDS = [block for block in BLOCKS if not block.lacks and block.commands]
LOCAL = [block for block in COMMANDS if not ELSEWHERE.search(" ".join(block.commands))]
ON_TESTBED = [block for block in COMMANDS if ELSEWHERE.search(" ".join(block.commands))]
PYTHON = [block for block in BLOCKS if not block.lacks and not block.commands]
DONE: set[tuple[str, ...]] = set()
"""The commands that were run."""
ID = r"\d{8}-\d{6}-[a-z]+-[a-z]+"
SCRIPT = """
import argparse, sys, torch
from amp_launcher import job
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
lr = parser.parse_known_args()[0].lr
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    job.log(step, loss=loss, score=float(loss))
"""
APPLICATION = """
import hydra
from omegaconf import OmegaConf

@hydra.main(version_base=None)
def main(config):
    print(OmegaConf.to_yaml(config))

main()
"""


def by_name(block: Block) -> str:
    return block.name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's folder, with the files that the pages name, and settings of theirs that make runs small."""
    (tmp_path / "home").mkdir()
    for name, value in {"HOME": "home", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "home/.config"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("LAUNCHER_CONFIG_DIR", raising=False)
    settings = tmp_path / "home/.config/amp-launcher"
    settings.mkdir(parents=True)
    settings.joinpath("config.yaml").write_text(
        f"steps: 3\npython: {warm.python()}\nrun_root: {tmp_path}/runs\ntelemetry: {{every: 0}}\n"
        "checkpoint: {every: 2, keep: 9}\ndevice: cpu\nbatch: 16\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    for name in ("train.py", "evaluate.py"):
        (work / name).write_text(SCRIPT)
    (work / "conf").symlink_to(ROOT / "conf")
    shutil.copy(ROOT / "tests/scripts/keras_fit.py", work / "fit.py")
    lightning = (ROOT / "tests/scripts/lit.py").read_text("utf-8")
    (work / "lit.py").write_text(re.sub(r"\s*precision=args.precision,", "", lightning))
    shutil.copy(ROOT / "tests/scripts/hf_trainer.py", work / "trainer.py")
    (work / "app.py").write_text(APPLICATION)
    for program in (work / "prepare.sh", tmp_path / "home/bin/tell"):
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
    (jobs,) = re.findall(r"(?s)```yaml\n# nightly.yaml\n(.*?)```", (ROOT / "docs/scripts.md").read_text("utf-8"))
    for name in ("night.yaml", "nightly.yaml"):
        (work / name).write_text(jobs.replace("gpus=1", "gpus=0").replace("amp=o2", "amp=o1"))
    for folder in ("data", "fineweb", "sites/cluster", "sites/recipe", "sites/recipes/mlp"):
        (work / folder).mkdir(parents=True)
    for name in ("train.bin", "val.bin"):
        (work / "fineweb" / name).write_bytes(bytes(byte for low in range(256) for byte in (low, 0)) * 20)
    (work / "sites/cluster/mysite.yaml").write_text("kind: slurm\npartition: gpu\n")
    (work / "sites/recipe/mlp.yaml").write_text("recipe: mlp\n")
    for name in ("__init__.py", "train_torch.py"):
        text = (ROOT / "recipes/simplenet" / name).read_text("utf-8")
        (work / "sites/recipes/mlp" / name).write_text(text.replace('"simplenet"', '"mlp"'))
    monkeypatch.chdir(work)
    run_roots.remember(tmp_path / "runs")
    yield work
    runs = selection.newest([str(tmp_path / "runs")], 1000)
    backends.end({str(one.folder): run_files.load(str(one.folder)) for one in runs}, 0)


@pytest.fixture
def slurm(testbed: Testbed, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run root that the nodes of the testbed see, whose jobs are cancelled and which is deleted at the end."""
    for name, value in {**testbed.environment, "APPTAINER_USERNS": "1"}.items():
        monkeypatch.setenv(name, value)
    root = tempfile.mkdtemp(prefix="blocks-", dir=testbed.shared)
    yield root
    runs = selection.newest([root], 1000)
    backends.end({str(one.folder): run_files.load(str(one.folder)) for one in runs}, 0)
    for folder in (root, f"{testbed.user.home}/blocks"):
        shutil.rmtree(folder, ignore_errors=True)


def own(block: Block) -> set[str]:
    """The names in a block that are of runs which it starts."""
    return {"calm-lake"} if "chain nightly" in block.text else {"bright-oak"} if "fetch " in block.text else set()


def named(block: Block) -> list[tuple[str, str]]:
    """A run, or a sweep of two, for each name that a block's commands take for granted; its id stands for the name.
    None where the block starts it itself."""
    found: list[tuple[str, str]] = []
    for name in sorted({*re.findall(r"wise-oasis|bright-oak|\bRUN\b|calm-lake", str(block.commands))} - own(block)):
        printed = run([*doc_blocks.LAUNCHER, "amp=o0,o1" if name == "calm-lake" else "amp=o2"])
        found.append((rf"\[?\b{name}\b\]?", re.findall(ID, printed)[0]))
    return found


def run_once(words: list[str], further: Sequence[str] = ()) -> str:
    """What a command prints; empty where another block has the same words, and ran them."""
    if tuple(words) in DONE:
        return ""
    DONE.add(tuple(words))
    return run(words, further)


@pytest.mark.parametrize("block", LOCAL, ids=by_name)
def test_a_block_of_commands_runs(block: Block, home: Path) -> None:
    more = named(block)
    for line in block.commands:
        run_once(smaller(line, more))


@pytest.mark.parametrize("block", [block for block in MARKED if "-m launcher" in block.text], ids=by_name)
def test_a_marked_block_is_understood_and_lacks_what_it_says(block: Block, home: Path) -> None:
    """No command of it is wrong in itself; where it needs something, a plan of one of them is refused for it."""
    codes = []
    for line in block.commands:
        verb, words = verb_of(line)
        if verb in ("run", "plan") and "--help" not in words and "experiment=" not in line:
            to_specs(compose(split_flags(words, own=("json", "facts", "all", "script"), starts=True)))
            codes.append(main(["plan", *words]) if block.lacks.startswith("needs") else 2)
    assert not codes or any(codes), "this machine has what the block lacks: take its comment away"


WOULD = [block for block in MARKED if block.lacks.startswith("would")]


@pytest.mark.parametrize("block", WOULD, ids=by_name)
def test_what_a_block_would_do_is_done_by_the_tests_that_its_comment_names(block: Block) -> None:
    """Their text has each verb, flag and key of the block; those of a page that a program writes are its own."""
    if block.page.name == "scripts-tried.md":
        assert "`python -m benchmarks scripts` runs them" in block.lacks and (ROOT / "benchmarks/scripts").is_dir()
        return
    named = [ROOT / name for name in re.findall(r"\btests/[\w/.]*\w", block.lacks)]
    files = [file for path in named for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    text = "\n".join(file.read_text("utf-8") for file in files)
    expected = set()
    for line in block.commands:
        verb, words = verb_of(line.partition(" -- ")[0])
        keys = (word.partition("=")[0].strip("[") for word in words if "=" in word or word.startswith("-"))
        expected |= {verb, *keys} - {"", "run"} if "-m launcher" in line else set()
    assert named and text and not [word for word in expected if not re.search(rf"(?<![\w.]){word}\b", text)]


def test_the_programs_for_mail_and_messages_send_the_text_of_what_they_are_told(tmp_path: Path) -> None:
    (block,) = (block for block in WOULD if "would send mail" in block.lacks)
    for name in ("mail", "curl"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\ncat\n')
        (tmp_path / name).chmod(0o700)
    (tmp_path / ".config").mkdir()
    for name in ("ntfy-topic", "slack-webhook"):
        (tmp_path / ".config" / name).write_text("mine\n")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for program in block.text.split("#!/bin/sh\n")[1:]:
        argv = ["sh", "-ec", program]
        done = subprocess.run(
            argv, input='{"text": "calm-fox is done"}', env=environment, capture_output=True, text=True
        )
        assert done.stdout.startswith(str(tmp_path)) and "calm-fox is done" in done.stdout, done.stderr


def python_pages() -> dict[str, list[Block]]:
    """The blocks of Python that are run in one program: those of a page that have the same framework."""
    programs: dict[str, list[Block]] = {}
    for block in PYTHON:
        framework = re.search(r"amp_launcher\.(tensorflow|paddle)|SlurmExecutor", block.text)
        own = (
            block.page.stem if block.page.stem == "python" else f"{block.page.stem} {framework[0] if framework else ''}"
        )
        programs.setdefault(own.strip(), []).append(block)
    return programs


PROGRAMS = python_pages()
IN_SLURM = [name for name, blocks in PROGRAMS.items() if any("SlurmExecutor" in block.text for block in blocks)]


def run_program(name: str, home: Path, shared: str = "") -> None:
    text = "\n".join(doc_python.program(block.text) for block in PROGRAMS[name])
    for old, new in [("/shared/runs", shared), ("gpus=2", "gpus=0"), ("gpus_per_node=2", "gpus_per_node=0")]:
        text = text.replace(old, new)
    (home / "program.py").write_text(text, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    if "from_env" in text or "amp_launcher.paddle" in text:  # of a run; on a CPU Paddle has o0
        command = [sys.executable, "-m", "launcher", "program.py", "amp=o0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in IN_SLURM])
def test_blocks_of_python_run(name: str, home: Path) -> None:
    run_program(name, home)


@pytest.mark.parametrize("name", IN_SLURM)
def test_blocks_of_python_run_in_slurm(name: str, home: Path, slurm: str) -> None:
    run_program(name, home, slurm)


@pytest.mark.parametrize("block", ON_TESTBED, ids=by_name)
def test_a_block_of_commands_runs_on_the_testbed(block: Block, home: Path, testbed: Testbed, slurm: str) -> None:
    hosts = [(r"me@203\.0\.113\.7:52013|me@login|\blab\b", f"testbed cluster.ssh_config={testbed.ssh.config}")]
    torch = testbed.images["torch"]
    images = [(r"container=docker image=\S+", f"container=docker image={torch.docker} container.limits=null")]
    images += [(r"image=\S+\.sif", f"image={torch.sif}"), ("cluster.time=4:00:00", "cluster.time=5")]
    more = [*named(block), *hosts, *images]
    for line in block.commands:
        words = smaller(line, more)
        host = any(word.startswith("cluster.host=") for word in words)
        here = "slurm" in line and "login" not in line
        place = [f"run_root={slurm}"] if here else [f"run_root={testbed.user.home}/blocks", f"python={testbed.python}"]
        further = place if host or "slurm" in line else ["python=python3"] if "container=" in line else []
        printed = (run if own(block) else run_once)(words, further)
        more = [*more, *((r"bright-oak|calm-lake", found) for found in re.findall(ID, printed)[:1])]
