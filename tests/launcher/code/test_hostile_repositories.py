"""Planning a script of a repository that somebody else made runs none of the programs that the repository names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.code import snapshot, user_code

ATTRIBUTES = "* filter=own diff=own\n"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("GIT_")  # the suite may run in a hook
}


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, env=ENVIRONMENT)


def committed(folder: Path, **files: str) -> Path:
    """A repository with one commit of a script, and of files, `__` in their names being `/`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    for name, text in {"train.py": "print(1)\n", "helper.py": "X = 1\n", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "--force", ".")
    git(folder, "commit", "-q", "-m", "all")
    return folder


def changed(folder: Path) -> None:
    """Make git compare the content of the files again."""
    (folder / "helper.py").write_text("X = 2\n")
    os.utime(folder / "train.py", (1, 1))


def configured(folder: Path, *settings: str) -> None:
    for setting in settings:
        git(folder, "config", *setting.split("=", 1))


def fsmonitor(top: Path, program: str) -> Path:
    configured(committed(top), f"core.fsmonitor={program}")
    return top / "train.py"


def included(top: Path, program: str) -> Path:
    (committed(top) / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    configured(top, "include.path=../more")
    return top / "train.py"


def of_a_worktree(top: Path, program: str) -> Path:
    made = committed(top.with_name("main"))
    configured(made, "extensions.worktreeConfig=true")
    git(made, "worktree", "add", "-q", str(top))
    git(top, "config", "--worktree", "core.fsmonitor", program)
    return top / "train.py"


def nested(top: Path, program: str) -> Path:
    configured(committed(committed(top) / "inner"), f"core.fsmonitor={program}")
    return top / "train.py"


def submodule(top: Path, program: str) -> Path:
    library = committed(top.with_name("library"), **{".gitattributes": ATTRIBUTES})
    git(committed(top), "submodule", "add", "-q", str(library), "lib")
    git(top, "config", "--file", ".gitmodules", "submodule.lib.ignore", "none")
    git(top, "commit", "-q", "-a", "-m", "lib")
    configured(top / "lib", f"core.fsmonitor={program}", f"filter.own.clean={program}; cat")
    changed(top / "lib")
    return top / "train.py"


def bare_folder(top: Path, program: str) -> Path:
    """A tracked folder that looks like a bare repository, after a plain clone."""
    config = f"[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = {program}\n"
    files = {"HEAD": "ref: refs/heads/main\n", "config": config, "refs__x": "", "objects__x": "", "train.py": "1\n"}
    origin = committed(top.with_name("origin"), **{f"tool__{name}": text for name, text in files.items()})
    shutil.copy(origin / ".git" / "index", origin / "tool")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "index")
    git(top.parent, "clone", "-q", str(origin), str(top))
    return top / "tool" / "train.py"


def git_file(top: Path, program: str) -> Path:
    configured(committed(top), f"core.fsmonitor={program}")
    (top / ".git").rename(top / "store")
    (top / ".git").write_text("gitdir: store\n")
    return top / "train.py"


def git_link(top: Path, program: str) -> Path:
    configured(committed(top), f"core.fsmonitor={program}")
    (top / ".git").rename(top / "store")
    (top / ".git").symlink_to("store")
    return top / "train.py"


def filters(top: Path, program: str) -> Path:
    committed(top, **{".gitattributes": ATTRIBUTES})
    configured(top, f"filter.own.clean={program}; cat", f"filter.own.smudge={program}; cat")
    changed(top)
    return top / "train.py"


def filter_process(top: Path, program: str) -> Path:
    configured(committed(top, **{".gitattributes": ATTRIBUTES}), f"filter.own.process={program}")
    changed(top)
    return top / "train.py"


def text_conversion(top: Path, program: str) -> Path:
    configured(committed(top, **{".gitattributes": ATTRIBUTES}), f"diff.own.textconv={program}; cat")
    changed(top)
    return top / "train.py"


def external_diff(top: Path, program: str) -> Path:
    committed(top, **{".gitattributes": ATTRIBUTES})
    configured(top, f"diff.external={program}", f"diff.own.command={program}", f"core.pager={program}")
    changed(top)
    return top / "train.py"


def hooks(top: Path, program: str) -> Path:
    committed(top)
    (top / "hooks").mkdir()
    for folder in (top / "hooks", top / ".git" / "hooks"):
        for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
            (folder / name).write_text(f"#!/bin/sh\n{program}\n")
            (folder / name).chmod(0o755)
    configured(top, f"core.hooksPath={top}/hooks")
    changed(top)
    return top / "train.py"


def lazy_fetch(top: Path, program: str) -> Path:
    """A partial clone that lacks the tree of its commit: git would ask the remote for it."""
    committed(top)
    tree = subprocess.check_output(
        ["git", "-C", str(top), "rev-parse", "HEAD^{tree}"], text=True, env=ENVIRONMENT
    ).strip()
    (top / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    configured(
        top,
        "core.repositoryFormatVersion=1",
        "extensions.partialClone=origin",
        "remote.origin.promisor=true",
        f"remote.origin.url=ext::{program} %S",
        f"remote.origin.uploadpack={program}",
        "protocol.ext.allow=always",
        f"core.sshCommand={program}",
    )
    changed(top)
    return top / "train.py"


HOSTILE = (
    *(fsmonitor, included, of_a_worktree, nested, submodule, bare_folder, git_file, git_link),
    *(filters, filter_process, text_conversion, external_diff, hooks, lazy_fetch),
)


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_a_repository_runs_no_program_that_it_names(make: Callable[[Path, str], Path], tmp_path: Path) -> None:
    program, witness = tmp_path / "program", tmp_path / "witness"
    program.write_text(f"#!/bin/sh\necho $0 $@ >>{witness}\n")
    program.chmod(0o755)
    script = make(tmp_path / "project", str(program))
    witness.unlink(missing_ok=True)  # what git ran while the repository was made
    collected = user_code.collect(script)
    assert "script/" + script.relative_to(collected.root).as_posix() in collected.files
    for root, files in ((collected.root, list(collected.files.values())), (script.parent, [script])):
        snapshot.origin(root, files)
    assert not witness.exists(), witness.read_text()


@pytest.mark.parametrize("kind", ["sha256", "split index", "sparse index", "excluded", "bytes"])
def test_of_its_settings_a_repository_keeps_those_that_say_which_files_it_has(kind: str, tmp_path: Path) -> None:
    top = tmp_path / "project"
    if kind == "sha256":
        git(tmp_path, "init", "-q", "--object-format=sha256", str(top))
    committed(top, a__one="1", b__two="2")
    (top / "out.log").write_text("")
    if kind == "split index":
        git(top, "update-index", "--split-index")
    if kind == "sparse index":
        git(top, "sparse-checkout", "set", "--cone", "--sparse-index", "a")
    if kind == "bytes":
        git(top, "config", "core.fileMode", "false")
        (top / "helper.py").chmod(0o755)
    if kind == "excluded":
        (top / ".git" / "info" / "exclude").write_text("one.tmp\n")
        (tmp_path / "ignored").write_text("out.log\n")
        git(top, "config", "core.excludesFile", str(tmp_path / "ignored"))
        (top / "one.tmp").write_text("")
    files = user_code.collect(top / "train.py").files
    expected = {"train.py", "helper.py", "a/one", *(["b/two"] if kind != "sparse index" else [])}
    expected |= {"out.log"} if kind != "excluded" else set()
    assert set(files) == {f"script/{name}" for name in expected}
    (top / "out.log").unlink()
    commit = subprocess.check_output(["git", "-C", str(top), "rev-parse", "HEAD"], text=True, env=ENVIRONMENT)
    assert snapshot.git_state(top, [top / "train.py"]) == (commit.strip(), False)
    script = [top / "train.py"]
    inner = [committed(top / "inner") / "train.py"]
    (top / "result.csv").write_text("")
    (inner[0].parent / "result.csv").write_text("")
    assert snapshot.git_state(top, script + inner) == (commit.strip(), False), "as results are no part of the code"
    assert snapshot.git_state(top, [*script, top / "result.csv"]) == (commit.strip(), True)
    changed(inner[0].parent)
    assert snapshot.git_state(top, script + inner) == (commit.strip(), True)
    (top / "train.py").write_text("changed")
    assert snapshot.git_state(top, script) == (commit.strip(), True)
    assert "+changed" in snapshot.origin(top, script)["diff"]
