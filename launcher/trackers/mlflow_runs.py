"""MLflow: a run of its server or store for each run here, below a parent run of a sweep or comparison."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launcher.errors import Unavailable, UsageError
from launcher.runs import run_roots
from launcher.trackers.content import LONGEST, Content, Point
from launcher.trackers.sending import Sink, Tracker

EXPERIMENT = "amp-launcher"
"""Where `MLFLOW_EXPERIMENT_NAME` names none."""
METRICS, PARAMS = 1000, 100
"""What a server takes in one request."""
ENDS = {"done": "FINISHED", "failed": "FAILED", "lost": "FAILED"}
"""Of other states that are ends the status is `KILLED`."""
_UNNAMEABLE = re.compile(r"[^\w\-. /:]")
_TAG = "launcher.run"


def _errors_of_stores() -> tuple[type[Exception], ...]:
    """What a store without a server raises; none where its package is not installed."""
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return ()
    return (SQLAlchemyError,)


class Mlflow(Tracker):
    """The server or store of `MLFLOW_TRACKING_URI`, by MLflow's own client."""

    def __init__(self) -> None:
        """Raises `UsageError` where the address is none."""
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default it tries for minutes
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        self._address = os.environ.get("MLFLOW_TRACKING_URI") or "MLflow's default store"
        # Of a store without a server the client makes the tables, and two at once break it.
        with self.talking(), run_roots.alone(Path(run_roots.state_folder(), "mlflow.lock")):
            self.client = MlflowClient()
            self._address = _without_key(self.client.tracking_uri)
        self.place = f"mlflow {self._address} {self._name}"

    def has(self, mark: dict[str, Any]) -> bool:
        from mlflow.exceptions import MlflowException

        with self.talking():
            try:
                return bool(self.client.get_run(str(mark.get("id"))).info.lifecycle_stage == "active")
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return False
                raise

    def open(self, content: Content, mark: dict[str, Any]) -> MlflowRun:
        with self.talking():
            run = mark.get("id") or self._run(content.id, content.label, content.group and self._run(content.group))
            return MlflowRun(self, str(run), content)

    def close_group(self, group: str) -> None:
        with self.talking():
            self.client.set_terminated(self._run(group), "FINISHED")

    def told(self) -> str:
        return f"MLflow: {self._address}, experiment {self._name}"

    def _run(self, name: str, label: str = "", parent: str | None = None) -> str:
        """The id of the run of that name here; it is made where there is none."""
        found = self.client.search_runs([self._experiment], f"tags.`{_TAG}` = '{name}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {_TAG: name} | ({"mlflow.parentRunId": parent} if parent else {})
        return str(self.client.create_run(self._experiment, tags=tags, run_name=label or name).info.run_id)

    @functools.cached_property
    def _experiment(self) -> str:
        found = self.client.get_experiment_by_name(self._name)
        return str(found.experiment_id if found else self.client.create_experiment(self._name))

    @contextlib.contextmanager
    def talking(self) -> Iterator[None]:
        """Raises `Unavailable` where the server does not answer or the store can't be used, `UsageError` where the
        server or the client refuses."""
        import requests
        from mlflow.exceptions import MlflowException

        try:
            yield
        except _errors_of_stores() as error:
            why = str(error).partition("\n")[0].rpartition(") ")[2]
            raise Unavailable(f"{self._address} refuses: {why}") from None
        except (MlflowException, requests.RequestException, OSError) as error:
            text = " ".join(str(error).split())
            if "error code 401" in text or "error code 403" in text:
                raise UsageError(
                    f"{self._address} refuses the key: set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
                    "MLFLOW_TRACKING_PASSWORD"
                ) from None
            if isinstance(error, MlflowException) and "Max retries" not in text and "failed with" not in text:
                raise UsageError(
                    f"MLFLOW_TRACKING_URI={self._address}: {text[:300]}; it is http://HOST:PORT, sqlite:///FILE or none"
                ) from None
            why = text.rpartition(": ")[2].rstrip("\"')")[-200:]
            raise Unavailable(f"{self._address} does not answer as an MLflow server ({why})") from None


class MlflowRun(Sink):
    """One run there."""

    def __init__(self, home: Mlflow, run: str, content: Content) -> None:
        from mlflow.entities import Param, RunTag

        self._home, self._client, self._run = home, home.client, run
        self.mark: dict[str, Any] = {"id": run}
        # A value that `resume` changed stays as it was: params can't change.
        there = self._client.get_run(run).data.params
        params = [
            Param(_name(key), str(value)[:6000]) for key, value in content.settings.items() if _name(key) not in there
        ]
        for first in range(0, len(params), PARAMS):
            self._client.log_batch(run, params=params[first : first + PARAMS])
        self._client.log_batch(run, tags=[RunTag(key, value) for key, value in content.tags.items()])
        self._client.update_run(run, status="RUNNING")

    def send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_name(name), value, int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        with self._home.talking():
            for first in range(0, len(metrics), METRICS):
                self._client.log_batch(self._run, metrics=metrics[first : first + METRICS])

    def finish(self, content: Content, page: Callable[[], str]) -> None:
        from mlflow.entities import RunTag

        with self._home.talking():
            tags = {**content.tags, "verdict.why": content.verdict or "no verdict"}
            self._client.log_batch(self._run, tags=[RunTag(key, value) for key, value in tags.items()])
            self._client.log_text(self._run, page(), "report.html")
            ended = int((content.ended or time.time()) * 1000)
            self._client.set_terminated(self._run, ENDS.get(content.state, "KILLED"), ended)


def _name(text: str) -> str:
    """The name with what MLflow takes in one."""
    return _UNNAMEABLE.sub("_", text)[:LONGEST]


def _without_key(address: str) -> str:
    """The address without a user and password."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else address
