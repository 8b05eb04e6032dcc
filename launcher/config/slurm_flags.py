"""The options of sbatch that keys of `cluster` name, those that the launcher decides, and the others, in
`cluster.flags`."""

from __future__ import annotations

import re

from amp_launcher.typed import SettingsError
from launcher.config.schema import SlurmCluster

# Decided by the launcher: how a run is found, stopped and resumed rests on them.
OURS = (
    "array", "error", "export", "export-file", "gpus", "gpus-per-node", "gpus-per-task", "gres", "input", "job-name",
    "nodes", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal",
    "test-only", "wait", "wrap", "dependency",
)  # fmt: skip
NAMED = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "time": "time",
    "reservation": "reservation", "cpus-per-task": "cpus", "mem": "mem", "wckey": "wckey",
    "exclude": "exclude", "nodelist": "nodelist",
}  # fmt: skip
_FLAG = re.compile(r"--[a-z][a-z-]*(?:=.*)?")


def check_flags(cluster: SlurmCluster) -> None:
    """Refuse text that no option can have, and options that are not the user's. Raises `SettingsError`."""
    for flag in cluster.flags:
        name = flag.removeprefix("--").partition("=")[0]
        if not _FLAG.fullmatch(flag):
            raise SettingsError(f"cluster.flags: {flag} should be a long flag of sbatch, as --nice=100")
        if name in NAMED:
            raise SettingsError(f"cluster.flags: {flag}: say cluster.{NAMED[name]}= instead")
        if name in OURS:
            raise SettingsError(f"cluster.flags: --{name} is set by the launcher itself")
    for key in ("account", "partition", "qos", "exclude", "nodelist"):
        value = getattr(cluster, key)
        if value is not None and re.search(r"\s", value):
            raise SettingsError(f"cluster.{key}={value} holds a blank")
