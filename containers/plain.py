"""No container: the same description on the host itself. Image, mounts, user and caches mean nothing there."""

from __future__ import annotations

from containers.description import Container, with_exports, with_secrets
from containers.devices import visibility
from containers.runtime import Wrapped, limited


def wrap(container: Container) -> Wrapped:
    """To be started in the container's working folder."""
    return Wrapped(
        argv=limited(
            container.limits, with_exports(with_secrets(container.argv, container.secrets), container.exports)
        ),
        environment={**visibility(container.devices, "none").environment, **container.environment},
    )
