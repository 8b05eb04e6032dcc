"""The oldest versions of the trackers' packages that their clients here work with, as the extras have them."""

from __future__ import annotations

import re

from launcher.errors import UsageError

OLDEST: dict[str, dict[str, tuple[int, ...]]] = {
    "tensorboard": {"tensorboard": (2, 16)},
    "mlflow": {"mlflow-skinny": (2, 16), "sqlalchemy": (2,), "alembic": (1, 11)},
    "wandb": {"wandb": (0, 19, 10)},
}


def refuse_old_packages(tracker: str, key: str) -> None:
    """Raises `UsageError` where a package of the tracker is older, which ends in errors of its own. `key` is what named
    the tracker. What isn't installed is found out by who imports it."""
    import importlib.metadata  # which runs without a tracker don't wait for

    for package, oldest in OLDEST[tracker].items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if tuple(map(int, re.findall(r"\d+", version)))[: len(oldest)] < oldest:
            needed = ".".join(map(str, oldest))
            raise UsageError(
                f"{key}={tracker} needs {package} {needed} or newer, and there is {version}: "
                f"pip install 'amp-launcher[{tracker}]'"
            )
