"""Whether a host ends the processes of people who log out, as systemd does where it is told to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CONFIGURATION = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")
LINGERING = "/var/lib/systemd/linger"
_SETTING = re.compile(r"^\s*KillUserProcesses\s*=\s*(\S+)", re.MULTILINE)


def ends_at_logout(user: str, configuration: Iterable[str] = CONFIGURATION, lingering: str = LINGERING) -> bool:
    """Whether this user's runs would end with the connection: systemd-logind is told to kill what a session leaves, and
    the user may not linger. See logind.conf(5), KillUserProcesses; its default is no."""
    told = "no"
    for path in map(Path, configuration):
        files = sorted(path.glob("*.conf")) if path.is_dir() else [path]
        for file in files:
            try:
                found = _SETTING.findall(file.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
            told = found[-1] if found else told
    return told.lower() in ("yes", "true", "on", "1") and not Path(lingering, user).exists()
