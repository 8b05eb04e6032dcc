"""The Debian mirror that this machine already uses, read from its own apt sources: no host is written down here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.bed import TestbedError

APT = Path("/etc/apt")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True, slots=True)
class Source:
    """One archive and suite of the apt sources."""

    uri: str
    suite: str
    components: tuple[str, ...]
    keyring: str


def mirror(codename: str, apt: Path = APT) -> Source:
    """The source that Debian's own main archive of this release comes from, e.g. for `bookworm`."""
    found = list(sources(apt))
    for source in found:
        if source.suite == codename and "main" in source.components and "security" not in source.uri:
            return source
    said = ", ".join(f"{each.uri} {each.suite}" for each in found) or "none"
    raise TestbedError(f"no apt source for {codename} main in {apt} (sources there: {said})")


def codename(release: Path = Path("/etc/os-release")) -> str:
    """This Debian's name, `bookworm`."""
    values = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    name = values.get("VERSION_CODENAME", "").strip('"')
    if values.get("ID") != "debian" or not name:
        raise TestbedError(f"the testbed is made of Debian packages, and {release} says ID={values.get('ID')}")
    return name


def sources(apt: Path) -> Iterator[Source]:
    """Every enabled binary source, from both of apt's formats."""
    for path in sorted([apt / "sources.list", *(apt / "sources.list.d").glob("*.list")]):
        if path.is_file():
            yield from _one_line(path.read_text())
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        yield from _stanzas(path.read_text())


def _one_line(text: str) -> Iterator[Source]:
    """`deb [option=value ...] URI SUITE COMPONENT...`"""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        options = ""
        rest = words[1:]
        if rest and rest[0].startswith("["):
            end = next((index for index, word in enumerate(rest) if word.endswith("]")), len(rest) - 1)
            options = " ".join(rest[: end + 1]).strip("[]")
            rest = rest[end + 1 :]
        if len(rest) >= 2 and rest[0].startswith(("http:", "https:", "file:")):
            values = dict(each.split("=", 1) for each in options.split() if "=" in each)
            yield Source(rest[0].rstrip("/"), rest[1], tuple(rest[2:]), _keyring(values.get("signed-by")))


def _stanzas(text: str) -> Iterator[Source]:
    """Deb822: `Field: value` lines, continued by indentation, in paragraphs."""
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and name:
                fields[name] += f"\n{line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                if uri.startswith(("http:", "https:", "file:")):
                    components = tuple(fields.get("components", "").split())
                    yield Source(uri.rstrip("/"), suite, components, _keyring(fields.get("signed-by")))


def _keyring(signed_by: str | None) -> str:
    """A keyring's path. A key written out in the source itself, or none named, means Debian's packaged keyring."""
    return signed_by if signed_by and signed_by.startswith("/") and "\n" not in signed_by else KEYRING
