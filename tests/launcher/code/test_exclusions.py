"""Which files beside a script are copied with it: those that .gitignore leaves, never credentials or environments."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.code import git, outputs, user_code
from launcher.errors import UsageError

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAA\n"
CREDENTIALS = (
    *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".env", ".env.local", "production.env", "TLS.PEM", "a.key"),
    *("id_ed25519", ".bash_history", ".zsh_history", ".python_history", "kaggle.json"),
    *("sub/.netrc", "deep/er/server.key"),
)


@pytest.fixture(params=["checkout", "folder"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script's folder, inside git and outside of it."""
    folder = tmp_path / "project"
    lay(folder, "train.py", text="")
    if request.param == "checkout":
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


def lay(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def lay_large(folder: Path, *names: str, mib: int) -> None:
    lay(folder, *names)
    for name in names:
        os.truncate(folder / name, mib * 2**20)


def copied(folder: Path, *include: str) -> list[str]:
    """The files that go along with the script, but for those that say what git ignores."""
    files = user_code.collect(folder / "train.py", include).files
    return sorted(name.removeprefix("script/") for name in files if not name.endswith(".gitignore"))


def test_credentials_are_left_out_and_named_once(project: Path) -> None:
    lay(project, *CREDENTIALS, "keys.py", "monkey.py", "environment.yaml", "history.py")
    assert copied(project) == ["environment.yaml", "history.py", "keys.py", "monkey.py", "train.py"]
    assert sorted(user_code.collect(project / "train.py").credentials) == sorted(CREDENTIALS)


def test_credentials_that_git_tracks_are_left_out_too(tmp_path: Path) -> None:
    lay(tmp_path, "train.py", ".env", "server.pem")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "--force", "."], check=True)
    assert copied(tmp_path) == ["train.py"]


def test_a_private_key_is_known_by_its_text_whatever_its_name(project: Path) -> None:
    lay(project, "deploy", "keys/work.txt", text=PRIVATE)
    lay(project, "bundle", text=f"Bag Attributes\n    localKeyID: 01\r\n{PRIVATE}")
    lay(project, "indented.yaml", text="key: |\n  " + PRIVATE)
    lay(project, "public.txt", text="-----BEGIN PUBLIC KEY-----\n")
    lay(project, "notes.md", text=f"A key begins with {PRIVATE}")
    assert copied(project) == ["notes.md", "public.txt", "train.py"]


def test_a_link_to_a_credential_is_left_out(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    lay(home, ".netrc", ".ssh/config", ".ssh/__init__.py", ".aws/credentials", ".docker/config.json", "notes.txt")
    links = {"settings": ".netrc", "hosts": ".ssh/config", "cloud": ".aws/credentials", "notes": "notes.txt"}
    for name, target in {**links, "registry": ".docker/config.json", "package": ".ssh"}.items():
        (project / name).symlink_to(home / target)
    (project / "chain").symlink_to("settings")
    assert copied(project) == ["notes", "train.py"]


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history", "CACHEDIR.TAG"])
def test_virtual_environments_and_caches_are_left_out_whatever_they_are_called(project: Path, marker: str) -> None:
    for parent in ("", "a/b/"):
        lay(project, f"{parent}tools/{marker}", f"{parent}tools/lib/site-packages/torch.py", f"{parent}tools2/own.py")
        lay(project, f"{parent}__pycache__/a.py", f"{parent}__pycache__/m.pyc")
    assert copied(project) == ["a/b/tools2/own.py", "tools2/own.py", "train.py"]


def test_gitignore_holds_with_nested_files_and_negation_inside_git_and_outside(project: Path) -> None:
    lay(project, "big.bin", "keep.bin", "sub/big.bin", "sub/x.log", "sub/deep/x.log", "sub/deep/y.tmp", "data/a")
    lay(project, "a/data/b", "odd name", "sub/deep/keep.tmp")
    lay(project, ".gitignore", text="*.bin\n!keep.bin\n/data/\n*.tmp\n# comment\nodd\\ name\n")
    lay(project, "sub/.gitignore", text="*.log\n!/deep/x.log\n")
    lay(project, "sub/deep/.gitignore", text="!keep.tmp\n")
    assert copied(project) == ["a/data/b", "keep.bin", "sub/deep/keep.tmp", "sub/deep/x.log", "train.py"]


def test_include_adds_ignored_files_and_never_credentials(project: Path) -> None:
    lay(project, ".gitignore", text="data/\n*.json\n*.py\n")
    lay(project, "data/a.txt", "data/deep/b.txt", "data/.netrc", "one.json", "two.json", ".env", "out.txt", "../aside")
    assert copied(project) == ["out.txt", "train.py"], "the script is copied though it is ignored"
    assert copied(project, "data", "one.json") == ["data/a.txt", "data/deep/b.txt", "one.json", "out.txt", "train.py"]
    assert copied(project, "*.json") == ["one.json", "out.txt", "train.py", "two.json"]
    assert copied(project, f"{project}/data/**/*.txt") == ["data/a.txt", "data/deep/b.txt", "out.txt", "train.py"]
    for pattern, why in {
        ".env": ".*/.env is a credential, and credentials are never copied",
        "none": "there is no such file",
        "../aside": ".* is not in .*/project, the folder of the script",
    }.items():
        with pytest.raises(UsageError, match=rf"script\.include=\[{re.escape(pattern)}\]: {why}"):
            copied(project, pattern)


def test_a_plan_names_what_a_job_lacks_that_has_the_snapshot_alone(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imports = "import os, torch\nimport helper\nfrom pack.inner import x\ntry:\n    import local\nexcept: ...\n"
    lay(project, "train.py", text=imports)
    lay(project, "helper.py", text="from generated import table\n")
    lay(project, "pack/__init__.py", "pack/inner.py", "local.py", "generated.py", ".netrc", text="")
    lay(project, "data/images.bin", "weights.txt", ".hidden/x", "__pycache__/a.txt", "env/pyvenv.cfg", "sent/a.txt")
    lay(project, "old/.code/a/train.py", "copied/plan.json", "copied/run.sh")
    (project / "empty/within").mkdir(parents=True)
    ignored = "data/\nweights.txt\n.hidden/\n__pycache__/\nenv/\n"
    lay(project, ".gitignore", text=f"generated.py\nlocal.py\npack/inner.py\n{ignored}")
    words = ["plan", "recipe=script", "script=train.py", "amp=o0", f"run_root={tmp_path}/runs", "device=cpu"]
    assert main(words) == 0
    assert "left out" not in (out := capsys.readouterr().out) and "beside" not in out, "it runs where these lie"
    words += ["train.bare=true", "train.precision=script"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "the job finds nothing of data, weights.txt beside its script: git ignores" in " ".join(out.split())
    assert (
        out.count(f"note: left out of {project} as credentials: .netrc; secrets.NAME=FILE brings one to the job") == 1
    )
    assert f"the script imports pack/inner.py, local.py, generated.py of {project}, which git ignores" in out
    assert main([*words, "script.include=[pack/inner.py,local.py,generated.py]"]) == 0
    assert "the script imports" not in capsys.readouterr().out


def test_too_much_is_refused_and_the_folders_and_files_that_hold_it_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*include: str) -> str:
        with pytest.raises(UsageError) as refused:
            copied(project, *include)
        return str(refused.value)

    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 2**20)
    lay(project, "results/notes.txt", "src/model.py")
    lay_large(project, "big.bin", mib=3)
    assert f"(largest: {project}/big.bin 3 MiB); list data and results in {project}/.git" in refusal("big.bin")
    lay_large(project, "results/2024/a.pt", "results/2024/b.pt", "images/c.pt", mib=2)
    message = refusal("results", "images")
    assert f"(largest: {project}/results/ 4 MiB in 3 files, {project}/images/ 2 MiB in 1 file); " in message
    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 2**30)
    monkeypatch.setattr(outputs, "MAX_FILES", 6)
    lay(project, *(f"many/{number}.png" for number in range(99)))
    assert copied(project) == ["results/notes.txt", "src/model.py", "train.py"]
    assert f"more than 6 files (largest: {project}/many/ 0 MiB in 99 files)" in refusal("many")
    lay(project, *(f"own/{number}.py" for number in range(9)))
    assert f"more than 6 files (largest: {project}/own/ 0 MiB in 9 files" in refusal(), "code is never left out"
    monkeypatch.setattr(outputs, "MAX_FILES", 1000)
    monkeypatch.setattr(outputs, "MAX_FILES", len(kept := copied(project, "many")))
    assert copied(project, "many") == kept
    monkeypatch.setattr(outputs, "MAX_FILES", len(kept) - 1)
    assert f"more than {len(kept) - 1} files" in refusal("many")


def test_what_runs_left_is_known_by_its_name_and_left_out_unless_it_is_tracked_or_included(project: Path) -> None:
    lay(project, "vocabulary.bin", "src/model.py", "data.csv")
    lay_large(project, "model.pt", "out/1.ckpt", "out/2.ckpt", "src/trace.log", "src/table.py", mib=2)
    left_out = {"model.pt": "2 MiB", "out": "4 MiB in 2 files", "src/trace.log": "2 MiB"}
    collected = user_code.collect(project / "train.py")
    assert collected.left_out == left_out
    code = ["data.csv", "src/model.py", "src/table.py", "train.py", "vocabulary.bin"]
    assert copied(project) == code
    assert copied(project, "model.pt", "out") == sorted([*code, "model.pt", "out/1.ckpt", "out/2.ckpt"])
    if (project / ".git").exists():
        subprocess.run(["git", "-C", str(project), "add", "model.pt"], check=True)
        assert copied(project) == sorted([*code, "model.pt"])


def test_of_too_much_that_is_not_tracked_the_newest_is_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 3 * 2**20 + 2**10)
    lay_large(project, "images/a", "images/b", "results/a", "results/b", "src/data", mib=1)
    lay(project, "src/model.py", "conf/settings.yaml", "results/notes.txt")
    for top, age in {"images": 3, "results": 1, "src": 2}.items():
        for path in (project / top).iterdir():
            os.utime(path, (10**9 - age, 10**9 - age))
    small = ["conf/settings.yaml", "images/a", "images/b", "results/notes.txt"]
    assert copied(project) == [*small, "src/data", "src/model.py", "train.py"]
    monkeypatch.setattr(user_code.snapshot, "MAX_BYTES", 64 * 2**20)
    lay_large(project, "results/c", mib=64)
    alone = ("train.bare=true", "train.precision=script", "framework=torch", "amp=o0", "device=cpu")
    assert main(["plan", "train.py", *alone, f"run_root={project}/../runs"]) == 0
    said = f"note: left out of {project} as results, since git does not track them: results (66 MiB in 3 files); script"
    assert f"{said}.include=[results] takes them along" in capsys.readouterr().out


def test_a_link_within_the_code_adds_no_environment_and_no_ignored_files(project: Path) -> None:
    lay(project, "env310/pyvenv.cfg", "env310/lib/torch.py", "big/data.txt", "src/model.py", "src/out.log")
    lay(project, ".gitignore", text="big/\n*.log\n")
    for name, target in {"venv": "env310", "lib": "env310/lib", "data": "big", "code": "src"}.items():
        (project / name).symlink_to(target)
    assert copied(project) == ["code/model.py", "src/model.py", "train.py"]


def test_without_git_a_gitignore_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "train.py", "sub/a.py", ".git-credentials")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert copied(tmp_path) == ["sub/a.py", "train.py"]
    lay(tmp_path, "sub/.gitignore")
    with pytest.raises(UsageError, match=r"sub/\.gitignore is read by git, which is not installed here"):
        copied(tmp_path)


def test_a_failure_of_git_is_refused_and_no_empty_snapshot(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(project, "bin/git", text='#!/bin/sh\ncase "$*" in *others*) echo "fatal: no" >&2; exit 128;; esac\n')
    (project / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=r"git can't list the files of .*project, the folder of the script: fatal: no"):
        git.files_of_folder(project)
