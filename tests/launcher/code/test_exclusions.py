"""Which files beside a script are copied with it: those that .gitignore leaves, never credentials or environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.code import exclusions, git, user_code
from launcher.errors import UsageError

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAA\n"
CREDENTIALS = (
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".env", ".env.local", "production.env", "TLS.PEM", "a.key"),
    *(
        "id_ed25519",
        ".bash_history",
        ".zsh_history",
        ".python_history",
        "sub/.netrc",
        "deep/er/server.key",
        "kaggle.json",
    ),
)


@pytest.fixture(params=["checkout", "folder"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script's folder, inside git and outside of it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    if request.param == "checkout":
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


def lay(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def taken(folder: Path, *include: str) -> list[str]:
    found = user_code.collect(folder / "train.py", include).files
    return sorted(each.removeprefix("script/") for each in found if not each.endswith(".gitignore"))


def test_credentials_are_left_out_and_named_once(project: Path) -> None:
    lay(project, *CREDENTIALS, "keys.py", "monkey.py", "environment.yaml", "history.py")
    collected = user_code.collect(project / "train.py")
    assert taken(project) == ["environment.yaml", "history.py", "keys.py", "monkey.py", "train.py"]
    assert sorted(collected.credentials) == sorted(CREDENTIALS)


def test_credentials_that_git_tracks_are_left_out_too(tmp_path: Path) -> None:
    lay(tmp_path, "train.py", ".env", "server.pem")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "--force", "."], check=True)
    assert taken(tmp_path) == ["train.py"]


def test_a_private_key_is_known_by_its_text_whatever_its_name(project: Path) -> None:
    lay(project, "deploy", "keys/work.txt", text=PRIVATE)
    lay(project, "bundle", text=f"Bag Attributes\n    localKeyID: 01\r\n{PRIVATE}")
    lay(project, "indented.yaml", text="key: |\n  " + PRIVATE)
    lay(project, "public.txt", text="-----BEGIN PUBLIC KEY-----\n")
    lay(project, "notes.md", text=f"A key begins with {PRIVATE}")
    assert taken(project) == ["notes.md", "public.txt", "train.py"]


def test_a_link_to_a_credential_is_left_out(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    lay(home, ".netrc", ".ssh/config", ".aws/credentials", "notes.txt")
    (project / "settings").symlink_to(home / ".netrc")
    (project / "hosts").symlink_to(home / ".ssh/config")
    (project / "cloud").symlink_to(home / ".aws/credentials")
    (project / "chain").symlink_to("settings")
    (project / "notes").symlink_to(home / "notes.txt")
    lay(home, ".docker/config.json")
    (project / "registry").symlink_to(home / ".docker/config.json")
    lay(home, ".ssh/__init__.py")  # a folder that looks like a package
    (project / "package").symlink_to(home / ".ssh")
    assert taken(project) == ["notes", "train.py"]


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history", "CACHEDIR.TAG"])
def test_virtual_environments_and_caches_are_left_out_whatever_they_are_called(project: Path, marker: str) -> None:
    lay(project, f"tools/{marker}", "tools/lib/site-packages/torch.py", "tools2/own.py", "__pycache__/a.py")
    assert taken(project) == ["tools2/own.py", "train.py"]


def test_a_real_virtual_environment_is_left_out(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / "mine")], check=True)
    assert taken(project) == ["train.py"]


def test_gitignore_holds_with_nested_files_and_negation_inside_git_and_outside(project: Path) -> None:
    lay(
        project,
        "big.bin",
        "keep.bin",
        "sub/big.bin",
        "sub/x.log",
        "sub/deep/x.log",
        "sub/deep/y.tmp",
        "data/a",
        "a/data/b",
    )
    (project / ".gitignore").write_text("*.bin\n!keep.bin\n/data/\n*.tmp\n# comment\nodd\\ name\n")
    lay(project, "odd name", "sub/deep/keep.tmp")
    (project / "sub/.gitignore").write_text("*.log\n!/deep/x.log\n")
    (project / "sub/deep/.gitignore").write_text("!keep.tmp\n")
    assert taken(project) == ["a/data/b", "keep.bin", "sub/deep/keep.tmp", "sub/deep/x.log", "train.py"]


def test_the_script_itself_is_copied_though_a_gitignore_names_it(project: Path) -> None:
    (project / ".gitignore").write_text("*\n")
    assert taken(project) == ["train.py"]


def test_include_adds_ignored_files_and_never_credentials(project: Path) -> None:
    (project / ".gitignore").write_text("data/\n*.json\n")
    lay(project, "data/a.txt", "data/deep/b.txt", "data/.netrc", "one.json", "two.json", ".env", "out.txt", "../aside")
    assert taken(project, "data", "one.json") == ["data/a.txt", "data/deep/b.txt", "one.json", "out.txt", "train.py"]
    assert taken(project, "*.json") == ["one.json", "out.txt", "train.py", "two.json"]
    assert taken(project, f"{project}/data/**/*.txt") == ["data/a.txt", "data/deep/b.txt", "out.txt", "train.py"]
    with pytest.raises(
        UsageError, match=r"script\.include=\[\.env\]: .*/\.env is a credential, and credentials are never copied"
    ):
        taken(project, ".env")
    with pytest.raises(UsageError, match=r"script\.include=\[none\]: there is no such file"):
        taken(project, "none")
    with pytest.raises(
        UsageError, match=r"script\.include=\[\.\./aside\]: .* is not in .*/project, the folder of the script"
    ):
        taken(project, "../aside")


def test_a_plan_names_credentials_and_imports_that_are_left_out(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(
        project,
        "train.py",
        text="import os, torch\nimport helper\nfrom pack.inner import x\ntry:\n    import local\nexcept: ...\n",
    )
    lay(project, "helper.py", text="from generated import table\n")
    lay(project, "pack/__init__.py", "pack/inner.py", "local.py", "generated.py", ".netrc", text="")
    (project / ".gitignore").write_text("generated.py\nlocal.py\npack/inner.py\n")
    words = ["plan", "recipe=script", "script=train.py", "amp=o0", f"run_root={tmp_path}/runs", "device=cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        out.count(f"note: left out of {project} as credentials: .netrc; secrets.NAME=FILE brings one to the job") == 1
    )
    assert f"the script imports pack/inner.py, local.py, generated.py of {project}, which git ignores" in out
    assert main([*words, "script.include=[pack/inner.py,local.py,generated.py]"]) == 0
    assert "the script imports" not in capsys.readouterr().out


def test_what_is_too_much_is_named_by_its_own_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 2**20)
    with open(project / "big.bin", "wb") as stream:
        stream.truncate(3 * 2**20)
    with pytest.raises(
        UsageError, match=rf"\(largest: {project}/big.bin 3 MiB\); list data and results in {project}/.git"
    ):
        taken(project)
    (project / ".gitignore").write_text("*.bin\n")
    assert taken(project) == ["train.py"]


def test_a_refusal_names_the_folders_that_are_too_large(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 2**20)
    lay(project, "results/notes.txt", "src/model.py")
    for name in ("results/2024/a.pt", "results/2024/b.pt", "images/c.bin"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        with open(project / name, "wb") as stream:
            stream.truncate(2 * 2**20)
    with pytest.raises(UsageError) as refusal:
        taken(project)
    assert f"(largest: {project}/results/ 4 MiB in 3 files, {project}/images/ 2 MiB in 1 file); " in str(refusal.value)


def test_a_refusal_for_many_files_names_the_folders_that_hold_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "MAX_FILES", 4)
    lay(project, *(f"images/{number}.png" for number in range(5)), "src/model.py")
    with pytest.raises(UsageError, match=rf"more than 4 files \(largest: {project}/images/ 0 MiB in 5 files\)"):
        taken(project)


def test_a_link_within_the_code_adds_no_environment_and_no_ignored_files(project: Path) -> None:
    lay(project, "env310/pyvenv.cfg", "env310/lib/torch.py", "big/data.txt", "src/model.py", "src/out.log")
    (project / ".gitignore").write_text("big/\n*.log\n")
    for name, target in {"venv": "env310", "lib": "env310/lib", "data": "big", "code": "src"}.items():
        (project / name).symlink_to(target)
    assert taken(project) == ["code/model.py", "src/model.py", "train.py"]


def test_the_same_rules_apply_to_nested_folders(project: Path) -> None:
    lay(project, "a/b/env310/pyvenv.cfg", "a/b/env310/bin/tool", "a/b/__pycache__/m.pyc", "a/b/out/w.pt", "a/b/m.py")
    (project / "a/.gitignore").write_text("out/\n")
    assert taken(project) == ["a/b/m.py", "train.py"]


def test_without_git_a_gitignore_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "train.py", "sub/a.py", ".git-credentials")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert taken(tmp_path) == ["sub/a.py", "train.py"]
    lay(tmp_path, "sub/.gitignore")
    with pytest.raises(UsageError, match=r"sub/\.gitignore is read by git, which is not installed here"):
        taken(tmp_path)


def test_a_failure_of_git_is_refused_and_no_empty_snapshot(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "bin").mkdir()
    lay(project, "bin/git", text='#!/bin/sh\ncase "$*" in *others*) echo "fatal: no" >&2; exit 128;; esac\n')
    (project / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=r"git can't list the files of .*project, the folder of the script: fatal: no"):
        git.files_of_folder(project)


def test_credentials_are_known_whatever_the_case_of_their_name() -> None:
    root = Path("/no/such")
    assert all(exclusions.is_credential(root / name.upper(), root) for name in CREDENTIALS)
