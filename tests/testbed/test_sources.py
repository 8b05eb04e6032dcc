"""The mirror is read from either of apt's formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.bed import TestbedError
from tests.testbed.sources import codename, mirror

LINES = """\
# deb http://commented.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb http://other.example/apt cloud-bookworm main
deb [arch=amd64 signed-by=/keys/own.gpg] http://mirror.example/debian/ bookworm main contrib
"""
STANZAS = """\
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 abc
"""


@pytest.mark.parametrize(("name", "text"), [("one.list", LINES), ("debian.sources", STANZAS)], ids=["lines", "deb822"])
def test_the_main_archive_is_found_in_either_format_and_no_other_is_taken_for_it(
    name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "sources.list.d" / name
    path.parent.mkdir()
    path.write_text(text)
    source = mirror("bookworm", tmp_path)
    assert (source.uri, source.suite) == ("http://mirror.example/debian", "bookworm")
    with pytest.raises(TestbedError, match="no apt source for trixie"):
        mirror("trixie", tmp_path)


def test_another_distribution_is_refused(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text("ID=ubuntu\nVERSION_CODENAME=jammy\n")
    with pytest.raises(TestbedError, match="ID=ubuntu"):
        codename(release)
