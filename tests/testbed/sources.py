"""The Debian mirror that this machine already uses, as apt itself reads its sources: no host is written down here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.testbed.bed import TestbedError, output_of

APT = Path("/etc/apt")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""The keys that Debian's archives are signed with, on a mirror too."""
_COLUMNS = "\t".join(f"$({name})" for name in ("SITE", "RELEASE", "COMPONENT"))


@dataclass(frozen=True, slots=True)
class Source:
    """One archive, suite and component of the apt sources."""

    uri: str
    suite: str
    component: str


def mirror(codename: str, apt: Path = APT) -> Source:
    """The source that Debian's own main archive of this release comes from, e.g. for `bookworm`."""
    known = sources(apt)
    for source in known:
        if (source.suite, source.component) == (codename, "main") and "security" not in source.uri:
            return source
    listed = ", ".join(f"{source.uri} {source.suite}" for source in known) or "none"
    raise TestbedError(f"no apt source for {codename} main in {apt} (sources there: {listed})")


def codename(release: Path = Path("/etc/os-release")) -> str:
    """This Debian's name, `bookworm`."""
    values = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    name = values.get("VERSION_CODENAME", "").strip('"')
    if values.get("ID") != "debian" or not name:
        raise TestbedError(f"the testbed is made of Debian packages, and {release} says ID={values.get('ID')}")
    return name


def sources(apt: Path = APT) -> list[Source]:
    """Every enabled binary source."""
    argv = ["apt-get", "-o", f"Dir::Etc={apt}", "indextargets", "--no-release-info", "--format", _COLUMNS]
    rows = [line.split("\t") for line in (output_of([*argv, "Created-By: Packages"]) or "").splitlines()]
    return list(dict.fromkeys(Source(row[0].rstrip("/"), row[1].rstrip("/"), row[2]) for row in rows if len(row) == 3))
