"""`python=uv`: the environment of a project, made on the host where its jobs run, before they are queued."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from launcher import admit
from launcher.admit import Refused
from launcher.code import uv_environment
from launcher.code.uv_project import UvProject
from launcher.probe.facts import Facts
from launcher.runs import store
from launcher.runs.address import Address

_MOST_LINES = 5000


def make(project: UvProject, facts: Facts, address: Address | None, *, shared: bool) -> None:
    """Make the environment that a host's facts name, with its progress on stderr. Raises `LauncherError`."""
    place, name = uv_environment.place(facts.run_root, facts.uid if shared else None), facts.uv
    if address is None:
        store.make_root(place.parent, shared=shared)
        show(uv_environment.make(place, name, project.files, project.member, str(project.lock)))
        return
    from launcher.code.code_archive import packed_files
    from launcher.ssh.host import connect

    host = connect(address)
    lines = host.stream(
        "make_environment",
        packed_files(project.files),
        place=str(place),
        name=name,
        member=project.member,
        lock=str(project.lock),
        shared=shared,
    )
    with host.admitting(), contextlib.closing(lines):
        show(admit.text(line, "a line of uv") for line in lines)


def show(lines: Iterable[str]) -> None:
    """Print what `uv_environment.make` says. Raises `Refused` for more than any uv says."""
    for number, line in enumerate(filter(None, lines)):
        if number == _MOST_LINES:
            raise Refused("what uv says has no end")
        print(line, file=sys.stderr)
