"""The examples in the help of each verb: words that the launcher understands, and does where it can be done here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands import VERBS, cmd
from launcher.commands.completion import candidates
from launcher.commands.examples import EXAMPLES, lines
from launcher.compare import comparison
from launcher.config import request, script_word
from launcher.runs import store

from ..run_folders import finished, metrics, result, sweep

RUN = "20261120-214907-wise-oasis"
ALL = [(verb, words) for verb, examples in EXAMPLES.items() for _, words in examples]
STARTS = ("run", "plan", "compare", "cmd", "up", "shell", "doctor")
"""Verbs whose words, without the name of a run, describe a job."""
DONE_HERE = ("plan", "ls", "logs", "watch", "cancel", "report", "rm")
CHAIN = """\
prepare: {words: cmd gpus=0 -- ./prepare.sh data/}
train: {needs: prepare, words: train.py amp=o1}
"""


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name, and a root with their runs."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("train.py", "fit.py"):
        (folder / name).touch()
    (folder / "nightly.yaml").write_text(CHAIN)
    (folder / "prepare.sh").write_text("#!/bin/sh\n")
    (folder / "prepare.sh").chmod(0o755)
    for run in (finished(root, RUN), *sweep(root, 3)):
        store.write_json(run / "result.json", result())
        metrics(run, [{"step": 1, "epoch": 0, "loss": 0.5, "time": 1.0}])
        (run / "attempts/1/stdout.log").write_text("a line that the run wrote\n")
    monkeypatch.chdir(folder)
    return folder


def split(line: str) -> tuple[str, list[str]]:
    words = shlex.split(line)
    return (words[0], words[1:]) if words[0] in VERBS else ("run", words)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_each_verb_ends_with_two_examples_of_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    shown = re.findall(r"^  python -m launcher (.*)$", capsys.readouterr().out.partition("\nexamples:\n")[2], re.M)
    assert shown == [words for _, words in EXAMPLES[verb]]
    assert sum(split(words)[0] == verb for words in shown) >= 2
    assert max(map(len, lines(verb))) <= 80


@pytest.mark.parametrize(("of", "line"), ALL, ids=[words for _, words in ALL])
def test_an_example_is_understood(of: str, line: str, project: Path) -> None:
    verb, words = split(line)
    own = words[: words.index("--")] if "--" in words else words
    flags = {*candidates(f"amp-launcher {verb} -"), *("-f",) * (verb == "logs")}
    assert {word for word in own if len(word) > 1 and word[0] == "-"} <= flags
    names = {word for word in own if word in ("wise-oasis", "calm-lake", "bold-fox", "desk")}
    if verb not in STARTS or names:
        return
    if verb == "cmd":
        words = cmd.words([word for word in words if word != "--plan"])
    if verb == "shell":
        words = own
    if verb == "up":
        words = [*cmd.KEYS, "script=./prepare.sh", *words]
    asked = request.split_flags(words, own=("script", "plan"), starts=verb not in ("shell", "doctor"))
    if verb == "compare":
        assert comparison.split_flags(asked.overrides)[1]
        return
    assert request.to_specs(request.compose(asked))
    assert not any(script_word.is_script(word) and not Path(word).exists() for word in own)


@pytest.mark.parametrize("line", [words for _, words in ALL if split(words)[0] in DONE_HERE or "--plan" in words])
def test_an_example_does_here_what_it_says(line: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0, capsys.readouterr()


@pytest.mark.parametrize("line", [words for _, words in EXAMPLES["image"]])
def test_an_example_of_images_prints_something(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out


def test_an_example_exports_to_tensorboard(project: Path) -> None:
    pytest.importorskip("tensorboard")
    assert main(shlex.split("export wise-oasis to=tensorboard")) == 0
    assert list(project.rglob("tensorboard/**/events.*"))
