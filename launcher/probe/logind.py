"""Whether a host kills processes at logout, as systemd can be configured to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CONFIGURATION = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")
LINGERING = "/var/lib/systemd/linger"
_SETTING = re.compile(r"^\s*KillUserProcesses\s*=\s*(\S+)", re.MULTILINE)


def ends_at_logout(user: str, configuration: Iterable[str] = CONFIGURATION, lingering: str = LINGERING) -> bool:
    """Whether this user's runs would end with the connection: systemd-logind kills the processes of a session, and the
    user may not linger. See logind.conf(5), KillUserProcesses; its default is no."""
    setting = "no"
    for path in map(Path, configuration):
        files = sorted(path.glob("*.conf")) if path.is_dir() else [path]
        for file in files:
            try:
                values = _SETTING.findall(file.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
            setting = values[-1] if values else setting
    return setting.lower() in ("yes", "true", "on", "1") and not Path(lingering, user).exists()
