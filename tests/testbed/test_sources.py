"""The mirror is read from either of apt's formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.bed import TestbedError
from tests.testbed.sources import KEYRING, codename, mirror


def apt(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def test_one_line_sources_give_the_main_archive(tmp_path: Path) -> None:
    text = (
        "# deb http://commented.example/debian bookworm main\n"
        "deb-src http://source.example/debian bookworm main\n"
        "deb http://security.example/debian-security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/keys/own.gpg] http://mirror.example/debian/ bookworm main contrib\n"
    )
    found = mirror("bookworm", apt(tmp_path, "sources.list", text))
    assert (found.uri, found.keyring) == ("http://mirror.example/debian", "/keys/own.gpg")


def test_deb822_sources_give_the_main_archive(tmp_path: Path) -> None:
    text = (
        "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n"
        "Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n abc\n"
    )
    found = mirror("bookworm", apt(tmp_path, "sources.list.d/debian.sources", text))
    assert (found.uri, found.suite, found.keyring) == ("http://mirror.example/debian", "bookworm", KEYRING)


def test_other_archives_are_not_taken_for_debian(tmp_path: Path) -> None:
    folder = apt(tmp_path, "sources.list.d/other.list", "deb http://other.example/apt cloud-bookworm main\n")
    with pytest.raises(TestbedError, match="no apt source for bookworm"):
        mirror("bookworm", folder)


def test_another_distribution_is_refused(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text("ID=ubuntu\nVERSION_CODENAME=jammy\n")
    with pytest.raises(TestbedError, match="ID=ubuntu"):
        codename(release)
