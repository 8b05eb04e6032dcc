"""What is in a snapshot of the code, and what isn't."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from launcher.code import code_store, snapshot
from launcher.code import git as git_module
from launcher.errors import UsageError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout that ignores logs and one folder."""
    folder = tmp_path / "checkout" / "recipes"
    (folder / "scratch").mkdir(parents=True)
    for name in ("__init__.py", "mnist.py", "mnist.py~", "new.py", "run.log", "scratch/weights.bin", ".env"):
        (folder / name).write_text(name)
    (folder.parent / ".gitignore").write_text("*.log\nscratch/\n")
    subprocess.run(["git", "init", "-q", str(folder.parent)], check=True)
    subprocess.run(["git", "-C", str(folder.parent), "add", "recipes/mnist.py"], check=True)
    return folder


def test_what_git_ignores_is_left_out_and_what_it_does_not_know_yet_is_in(package: Path) -> None:
    assert sorted(snapshot.collect(package)[0]) == ["recipes/__init__.py", "recipes/mnist.py", "recipes/new.py"]


def test_of_several_packages_each_is_as_its_own_checkout_has_it(package: Path, tmp_path: Path) -> None:
    beside, outside = package.with_name("beside"), tmp_path / "outside"
    for folder in (beside, outside):
        folder.mkdir()
        for name in ("__init__.py", "run.log"):
            (folder / name).write_text(name)
    first, *others = snapshot.collect(package, beside, outside)
    assert first == snapshot.collect(package)[0]
    assert [sorted(files) for files in others] == [["beside/__init__.py"], ["outside/__init__.py", "outside/run.log"]]


def test_a_link_that_leads_nowhere_is_left_out(package: Path) -> None:
    (package / ".#mnist.py").symlink_to("me@box.123")  # what Emacs leaves beside a file that is being edited
    assert "recipes/.#mnist.py" not in snapshot.collect(package)[0]


def test_a_package_that_git_ignores_as_a_whole_is_complete(package: Path) -> None:
    """As one that is installed in an environment within somebody's checkout."""
    (package.parent / ".gitignore").write_text("*\n")
    subprocess.run(["git", "-C", str(package.parent), "rm", "-q", "--cached", "recipes/mnist.py"], check=True)
    assert "recipes/mnist.py" in snapshot.collect(package)[0]


def test_a_tool_of_the_code_can_be_executed_from_the_snapshot(package: Path, tmp_path: Path) -> None:
    tool = package / "prep.sh"
    tool.write_text("#!/bin/sh\necho prepared\n")
    plain = snapshot.describe(package.parent, snapshot.collect(package)[0]).digest
    tool.chmod(0o755)
    files = snapshot.collect(package)[0]
    digest = snapshot.describe(package.parent, files).digest
    assert digest != plain
    stored = code_store.store(tmp_path / ".code", digest, files) / "recipes"
    assert subprocess.run([stored / "prep.sh"], capture_output=True, text=True, check=True).stdout == "prepared\n"
    assert stat.S_IMODE((stored / "mnist.py").stat().st_mode) == 0o400


def test_a_file_deleted_meanwhile_is_named_and_nothing_is_left(package: Path, tmp_path: Path) -> None:
    files = snapshot.collect(package)[0]
    digest = snapshot.describe(package.parent, files).digest
    (package / "new.py").unlink()
    with pytest.raises(UsageError, match=r"new\.py went away while the code was looked at; run the command again"):
        snapshot.describe(package.parent, files)
    with pytest.raises(UsageError, match=r"new\.py went away while the code was copied; run the command again"):
        code_store.store(tmp_path / ".code", digest, files)
    assert list((tmp_path / ".code").iterdir()) == []


def test_names_that_are_not_utf_8_are_treated_as_others(package: Path, tmp_path: Path) -> None:
    (package.parent / ".gitignore").write_bytes(b"kaffee-\xe9.py\n")
    for name in (b"kaffee-\xe9.py", b"tee-\xe9.py"):
        Path(os.fsdecode(os.fsencode(package) + b"/" + name)).write_text("")
    files = snapshot.collect(package)[0]
    assert [os.fsencode(file) for file in files if "-" in file] == [b"recipes/tee-\xe9.py"]
    target = code_store.store(tmp_path / ".code", snapshot.describe(package.parent, files).digest, files)
    assert (target / os.fsdecode(b"recipes/tee-\xe9.py")).is_file()


def test_a_repository_without_commits_has_none(package: Path) -> None:
    assert snapshot.git_state(package.parent, [package / "mnist.py"]) == (None, True)


def test_a_checkout_says_something_about_files_that_it_tracks_alone(package: Path) -> None:
    git = ["git", "-C", package, "-c", "user.name=x", "-c", "user.email=x@y"]
    tracked, other = package / "tracked.py", package / "other.py"
    tracked.touch()
    for words in (["init", "-q"], ["add", tracked], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    other.touch()
    for files, state in (
        ([tracked], (commit, False)),
        ([tracked, other], (commit, True)),
        ([other, tracked], (None, False)),
        ([], (None, False)),
    ):
        assert snapshot.git_state(package, files) == state


def test_without_git_a_checkout_says_nothing(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(git_module, "_found", {})
    assert snapshot.git_state(package.parent, [package / "mnist.py"]) == (None, False)


def test_a_diff_for_the_record_holds_no_credential_and_is_cut(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(package.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--force", "recipes/.env", "recipes/mnist.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "all"], check=True)
    for name in (".env", "mnist.py"):
        (package / name).write_text(f"changed {name}")
    diff = snapshot.origin(package.parent, [package / "mnist.py"])["diff"]
    assert "changed mnist.py" in diff and "changed .env" not in diff
    monkeypatch.setattr(snapshot, "MAX_DIFF_BYTES", 20)
    cut = snapshot.origin(package.parent, [package / "mnist.py"])["diff"]
    assert cut == f"{diff[:20]}\n... cut at 20 characters\n"


def test_a_diff_for_the_record_holds_no_credential_that_went_away(package: Path) -> None:
    git = ["git", "-C", str(package.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nKEY\n-----END OPENSSH PRIVATE KEY-----\n"
    texts = {"deploy": key, "replaced": f" {key}", "moved": key, "notes.txt": "old\n", "keys.py": key}
    for name, text in texts.items():
        (package / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    for name in ("deploy", "notes.txt", "keys.py"):
        (package / name).unlink()
    (package / "replaced").write_text("nothing\n")
    subprocess.run([*git, "mv", "-f", "recipes/moved", "recipes/.env"], check=True)
    diff = snapshot.origin(package.parent, [package / "replaced"])["diff"]
    changed = re.findall(r"^--- a/recipes/(.*)$", diff, re.MULTILINE)
    assert changed == ["keys.py", "notes.txt"]


def test_too_much_is_refused_with_the_files_that_are(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_BYTES", 2**20)
    with open(package / "model.bin", "wb") as stream:
        stream.truncate(3 * 2**20)
    with pytest.raises(UsageError, match=r"is 3 MiB, .*\(largest: /.*/recipes/model\.bin 3 MiB\)"):
        snapshot.describe(package.parent, snapshot.collect(package)[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_file_that_may_not_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "secret.py")
        path.touch(mode=0o600)
        os.seteuid(65534)
        try:
            with pytest.raises(UsageError, match=f"{path} belongs to the code of the job and can't be read"):
                snapshot.describe(Path(folder), {"secret.py": path})
        finally:
            os.seteuid(0)
