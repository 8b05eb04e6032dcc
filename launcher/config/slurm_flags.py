"""The options of sbatch that keys of `cluster` name, those that the launcher decides, and the others, in
`cluster.flags`."""

from __future__ import annotations

import re

from amp_launcher.typed import SettingsError
from launcher.config.schema import SlurmCluster

# Decided by the launcher: how a run is found, stopped and resumed rests on them.
OURS = (
    "array", "error", "export", "export-file", "input", "no-requeue", "ntasks", "ntasks-per-gpu", "ntasks-per-node",
    "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap",
)  # fmt: skip
NAMED = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "time": "time",
    "reservation": "reservation", "cpus-per-task": "cpus", "mem": "mem", "wckey": "wckey",
    "exclude": "exclude", "nodelist": "nodelist",
}  # fmt: skip
# A job with GPUs has its CPUs per node, which sbatch takes no --cpus-per-gpu beside.
_OTHER_KEYS = {
    "gpus": "gpus=, which is per node,", "gpus-per-node": "gpus=", "gpus-per-task": "gpus=, which is per node,",
    "cpus-per-gpu": "cluster.cpus=, which is per node,", "nodes": "nodes=", "job-name": "name=", "dependency": "after=",
    "signal": "cluster.stop_before=",
}  # fmt: skip
_INSTEAD = {name: f"cluster.{key}=" for name, key in NAMED.items()} | _OTHER_KEYS
_FLAG = re.compile(r"--[a-z][a-z-]*(?:=.*)?")


def check_flags(cluster: SlurmCluster) -> None:
    """Refuse text that no option can have, and options that are not the user's. Raises `SettingsError`."""
    for flag in cluster.flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if not _FLAG.fullmatch(flag):
            raise SettingsError(f"cluster.flags: {flag} should be a long flag of sbatch, as --nice=100")
        if name in _INSTEAD or (name == "gres" and re.search(r"\bgpu\b", value)):
            raise SettingsError(f"cluster.flags: {flag}: say {_INSTEAD.get(name, 'gpus=')} instead")
        if name in OURS:
            raise SettingsError(f"cluster.flags: --{name} is set by the launcher itself")
    for key in ("account", "partition", "qos", "exclude", "nodelist"):
        value = getattr(cluster, key)
        if value is not None and re.search(r"\s", value):
            raise SettingsError(f"cluster.{key}={value} holds a blank")
