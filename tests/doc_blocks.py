"""The blocks of README and docs: what a reader types there, made small enough for the suite, and run.

A block is four columns in, or fenced without a language that is read only (`text`, `yaml`). It is run as it stands, in
a home of its own, but for what `SMALLER` and `FURTHER` say. One that can't be run has a comment above it:
`<!-- not run: needs ... -->` where the launcher refuses it here, `<!-- not run: would ... -->` where it could be run,
why it isn't, and which tests do what it says.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.__main__ import main
from launcher.commands import VERBS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKER = re.compile(r"<!-- not run: ((?:needs|would) .*) -->")
LAUNCHER = ["python", "-m", "launcher"]
BECOME = ("export", "shell")
"""Verbs whose process may become another program."""
_COMMAND = re.compile(r"(\$ )?([A-Z_]+=\S+ )*(python|make|pip|uv|mkdir|cp|eval|cat)\b")

SMALLER = [
    (r"^make run$", "python -m launcher amp=o2 batch=512"),
    (r"(hydra/launcher=.*) lr=", r"\1 +lr="),
    (r"train\.layers=12 train\.width=768", "train.layers=1 train.width=64"),
    (r"\[(--json|RUN)\]", r"\1"),
    (r"\[step=N\]|\bstep=\d+", "step=2"),
    (r"amp\.dtype=float16", "amp.dtype=bfloat16"),  # a step of float16's convolutions takes a CPU half a minute
    (r"\[FILE\]", "all.safetensors"),
    (r"\bbatch=128,256\b|\bbatch=(128|256|512)\b", "batch=16"),
    (r"\bsteps=\d+|--steps \d+", lambda found: re.sub(r"\d+", "2", found[0])),
    (r"\bepochs=40", "steps=4"),
    (r"\bcompare\.steps=\d+", "compare.steps=4"),
    (r"\bcompare\.rounds=\d+", "compare.rounds=1"),
    (r"\bsearch\.trials=\d+", "search.trials=2"),
    (r"\bcompile=false,true\b", "compile=false"),
    (r"\bgpus=\d+", "gpus=0"),
    (r"-- python train\.py$", "-- python3 --version"),
    (r"shell desk$", "shell desk -- true"),
]
"""What stands in a page, and what the suite runs in its place."""
FURTHER = {
    "recipe=gpt": "steps=2 train.layers=2 train.width=64 train.heads=1 train.context=32 train.held_out=8",
    "recipe=simplenet": "steps=2 train.width=32",
    "recipe=mlp": "train.width=32",
    "recipe=gan": "train.channels=[3,3,3,3]",
    "recipe=resnet50": "train.image_size=32 train.width=2 train.classes=10",
    "search=optuna": "search.trials=2",
    "compare": "compare.steps=4 compare.rounds=1",
    "doctor": "gpus=0",
}
"""Words that follow a command that has this one, unless it names the same key."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    text: str
    lacks: str  # what the comment above it says; empty: it is run

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Its commands without comments, or none where it is Python. Where some have a `$`, the rest is output."""
        if not _COMMAND.match(self.text) and not self.text.startswith("#!"):
            ast.parse(self.text)
            return []
        lines = [re.sub(r"\s+#.*$", "", line) for line in self.text.splitlines()]
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        return typed or lines


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, with the comment that stands above each."""
    found, lines, number = [], page.read_text("utf-8").splitlines(), 0
    whole = MARKER.match(lines[0])  # of a page whose every block lacks the same
    while number < len(lines):
        first, above = number, [*lines[:number], ""]
        number += 1
        if lines[first].startswith("```"):
            while lines[number] != "```":
                number += 1
            text = lines[first + 1 : number]
            number += 1
            if lines[first] in ("```text", "```yaml"):
                continue
        elif lines[first].startswith("    ") and (not above[-2:-1] or not above[-2] or MARKER.match(above[-2])):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number]):
                number += 1
            text = [line[4:] for line in lines[first:number]]
        else:
            continue
        said = whole or next((MARKER.match(line) for line in reversed(above) if line), None)
        found.append(Block(page, first + 1, "\n".join(text).strip(), said[1] if said else ""))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def smaller(line: str, more: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = ()) -> list[str]:
    """The words of a command as the suite runs it."""
    for old, new in [*more, *SMALLER]:
        line = re.sub(old, new, line)
    words = shlex.split(line)
    if "launcher" not in words:
        return words
    end = words.index("--") if "--" in words else len(words)
    keys = {word.partition("=")[0] for word in words}
    for part, further in FURTHER.items():
        if part in words[:end] and not {"--help", "--plan"} & set(words):
            own = {*keys, "steps"} if "compare" in words else keys  # a comparison has compare.steps
            words[end:end] = [word for word in further.split() if word.partition("=")[0] not in own]
    return words


def run(words: list[str], further: Sequence[str] = ()) -> str:
    """Run a command: the launcher in this process, all else by bash. Returns what it printed; an exit code fails."""
    environment, written = dict(os.environ), io.BytesIO()
    printed = io.TextIOWrapper(written, "utf-8", write_through=True)
    while "=" in words[0]:
        name, _, os.environ[name] = words.pop(0).partition("=")
    into = words[words.index(">>") + 1] if ">>" in words else ""
    try:
        words = words[:-2] if into else words
        if words[:3] != LAUNCHER or words[3] in BECOME:
            python = [sys.executable, *words[1:]] if words[0] == "python" else words
            os.environ["PYTHONPATH"] = str(ROOT)
            done = subprocess.run(
                ["bash", "-ec", shlex.join(python).replace("'~/", "~/'")], capture_output=True, text=True
            )
            printed.write(done.stdout + done.stderr)
            code = done.returncode
        else:
            words = words[3:]
            end = words.index("--") if "--" in words else len(words)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                try:
                    code = main([*words[:end], *further, *words[end:]])
                except SystemExit as ended:
                    code = int(ended.code or 0)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert code == 0, f"{shlex.join(words)}\n{written.getvalue().decode()}"
    if into:
        Path(into).expanduser().parent.mkdir(exist_ok=True)
        Path(into).expanduser().write_text(written.getvalue().decode(), "utf-8")
    return written.getvalue().decode()


def verb_of(line: str) -> tuple[str, list[str]]:
    """The verb of a launcher's command and the words that follow it; no verb for other commands."""
    words = shlex.split(line)
    if words[:3] != LAUNCHER:
        return "", words
    words = words[3:]
    return (words.pop(0) if words[0] in VERBS else "run"), words
