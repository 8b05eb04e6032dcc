"""From a description to the command that starts it. Pure: `wrap(container, runtime)` looks at nothing."""

from __future__ import annotations

from containers import apptainer, engines, pyxis
from containers.description import Container, settle, with_exports, with_secrets
from containers.devices import visibility
from containers.runtime import Runtime, Wrapped, limited

_RENDERERS = {"docker": engines.wrap, "podman": engines.wrap, "apptainer": apptainer.wrap, "pyxis": pyxis.wrap}


def wrap(container: Container, runtime: Runtime) -> Wrapped:
    """The command and the environment that start this container with this runtime.

    `preflight.check` refuses beforehand what the runtime can't carry.
    """
    if runtime.kind == "none":
        return _on_the_host(container)
    return _RENDERERS[runtime.kind](settle(container), runtime)


def _on_the_host(container: Container) -> Wrapped:
    """To be started in the container's working folder; image, mounts, user and caches mean nothing there."""
    argv = with_exports(with_secrets(container.argv, container.secrets), container.exports)
    return Wrapped(
        argv=limited(container.limits, argv),
        environment={**visibility(container.devices, "none").environment, **container.environment},
    )
