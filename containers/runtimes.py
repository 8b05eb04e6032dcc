"""From a description to the command that starts it. Pure: `wrap(container, runtime)` looks at nothing."""

from __future__ import annotations

from launcher.containers import apptainer, engines, pyxis
from launcher.containers.description import Container, settle
from launcher.containers.runtime import Runtime, Wrapped

_RENDERERS = {"docker": engines.wrap, "podman": engines.wrap, "apptainer": apptainer.wrap, "pyxis": pyxis.wrap}


def wrap(container: Container, runtime: Runtime) -> Wrapped:
    """The command and the environment that start this container with this runtime.

    `preflight.check_container` refuses beforehand what the runtime can't carry.
    """
    return _RENDERERS[runtime.kind](settle(container), runtime)
