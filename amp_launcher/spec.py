"""The precision for a user's own script, from the plan that the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amp_launcher.arguments import read_plan
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, build

SPEC = "LAUNCHER_SPEC"
WANTED = ("amp", "loss_scale", "tf32", "xla", "compile", "device", "framework")


def read_spec(environ: Mapping[str, str], framework: str) -> Settings:
    """The settings of `WANTED` from the file that LAUNCHER_SPEC names; the others are defaults.

    Raises `SettingsError` where the variable isn't set, the file can't be read, or it is another framework's.
    """
    path = environ.get(SPEC)
    if not path:
        raise SettingsError(
            f"{SPEC} is not set: the launcher sets it to the run's plan.json. Start the script with the launcher, or "
            "use Precision.of(Amp(level=...), LossScale(), device)",
            SPEC,
        )
    settings = read_plan(Path(path))["settings"]
    wanted = build(Settings, {key: settings[key] for key in WANTED if key in settings})
    if wanted.framework != framework:
        raise SettingsError(f"framework={wanted.framework} ({SPEC}={path}), and this is {framework}'s precision")
    return wanted
