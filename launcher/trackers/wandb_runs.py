"""Weights & Biases: a run of a project for each run here, grouped by sweep and comparison."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.errors import Unavailable, UsageError
from launcher.trackers.content import Content, Point
from launcher.trackers.sending import Sink, Tracker

PROJECT = "amp-launcher"
"""Where `WANDB_PROJECT` names none."""
PATIENCE = 30
"""Seconds that the service has to answer."""


class Wandb(Tracker):
    """The project of `WANDB_PROJECT`, by wandb's own client; with `WANDB_MODE=offline` files to be synced later."""

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self.settings = wandb.setup().settings
        self.project = self.settings.project or PROJECT
        self.place = f"wandb {self.settings.base_url} {self.settings.entity or ''}/{self.project}"
        self._folders: list[str] = []

    def open(self, content: Content, mark: dict[str, Any]) -> WandbRun:
        if any(name.startswith("WANDB_") for name in content.variables):
            raise UsageError(f"{content.id} logs to wandb itself, as its variables WANDB_... say; nothing is sent")
        _forget(content.id, str(mark.get("open")))
        with talking(self.settings.base_url):
            run = WandbRun(self, content)
        if run.is_offline:
            self._folders.append(run.mark["open"])
        return run

    def told(self) -> str:
        if self._folders:
            return "\n".join(f"wandb sync {folder}" for folder in self._folders)
        return f"wandb: {self.settings.base_url}, project {self.project}"


class WandbRun(Sink):
    """One run there: its id is the run's here, so that all attempts and exports are one."""

    delayed = True

    def __init__(self, home: Wandb, content: Content) -> None:
        import wandb

        names = ("amp", "recipe", "framework")
        self._address = home.settings.base_url
        self._run = wandb.init(
            project=home.project,
            id=content.id,
            name=content.label,
            group=content.group,
            config={**content.settings, "launcher": dict(content.tags)},
            tags=[content.tags[name][:64] for name in names if name in content.tags],
            resume="allow",
            reinit="create_new",
            # Nothing of this process or machine, which have nothing to do with the run.
            settings=wandb.Settings(
                **{"console": "off", "silent": True, "init_timeout": PATIENCE, "x_disable_stats": True},
                **{"disable_git": True, "disable_code": True, "x_disable_meta": True, "x_save_requirements": False},
            ),
        )
        self.is_offline = bool(self._run.offline)
        self.mark: dict[str, Any] = {"id": content.id, "open": str(self._run.settings.sync_dir)}
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def send(self, points: list[Point]) -> None:
        with talking(self._address):
            for point in points:
                self._run.log({"step": point.step, "_timestamp": point.time, **point.values})

    def finish(self, content: Content, page: Callable[[], str]) -> None:
        with talking(self._address):
            self._run.summary.update({"state": content.state, "verdict": content.verdict or "no verdict"})
            self._run.config.update({"launcher": dict(content.tags)}, allow_val_change=True)
            file = Path(self._run.dir, "report.html")
            file.write_text(page(), encoding="utf-8")
            self._run.save(str(file), base_path=self._run.dir, policy="end")

    def close(self) -> None:
        with talking(self._address):
            self._run.finish()
        self.mark = {"id": self.mark["id"]}


@contextlib.contextmanager
def talking(address: str) -> Iterator[None]:
    """Raises `Unavailable` where the service does not answer, `UsageError` where it or the client refuses."""
    from wandb.errors import AuthenticationError, Error
    from wandb.errors import UsageError as WandbUsageError

    keyboard = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing  # wandb would ask for a key
        try:
            yield
        except (AuthenticationError, WandbUsageError) as error:
            raise UsageError(
                f"wandb: {_line(error)}; set WANDB_API_KEY, say `wandb login`, or WANDB_MODE=offline"
            ) from None
        except Error as error:
            raise Unavailable(
                f"wandb at {address} does not answer ({_line(error)}); WANDB_MODE=offline writes files for later"
            ) from None
        finally:
            sys.stdin = keyboard


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


def _forget(run: str, folder: str) -> None:
    """Delete the files of an offline export that was killed: all that is in them is written again."""
    if re.fullmatch(r"offline-run-[0-9_]+-" + re.escape(run), os.path.basename(folder)) and not os.path.islink(folder):
        shutil.rmtree(folder, ignore_errors=True)
