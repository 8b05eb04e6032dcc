"""Actions on remote runs: their host does what the launcher does to its own runs."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from launcher import admit
from launcher.errors import LauncherError
from launcher.runs import remote_record
from launcher.runs.selection import Selection
from launcher.runs.store import Run
from launcher.ssh.host import connect, nothing
from launcher.ssh.remote_status import by_address, is_settled

T = TypeVar("T")


def request_stop(wanted: Iterable[Run]) -> None:
    """Ask runs to save and stop at their next step. Raises `LauncherError`, once all hosts have been asked."""
    failed: list[LauncherError] = []
    for address, group in by_address(wanted).items():
        try:
            connect(address).ask("request_stop", nothing, runs=_names(group))
        except LauncherError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def cancel(wanted: Sequence[Run], now: bool, stop_grace: float, term_grace: float) -> dict[Run, str]:
    """As `stopping.cancel`. Returns why runs could not be ended. Hosts of ended runs are not asked: they may be
    gone."""
    why: dict[Run, str] = {}
    for address, group in by_address(run for run in wanted if not is_settled(run)).items():
        try:
            answers = connect(address).ask(
                "cancel",
                _each(admit.lines, len(group)),
                more_seconds=0 if now else stop_grace + term_grace,
                runs=_names(group),
                now=now,
                stop_grace=stop_grace,
                term_grace=term_grace,
            )
        except LauncherError as error:
            why.update({run: str(error) for run, _ in group})
            continue
        why.update({run: text for (run, _), text in zip(group, answers, strict=True) if text})
    return why


def remove(wanted: Sequence[Run], force: bool, *, now: bool = False) -> None:
    """Move the folders of runs there to the trash, or delete them `now`. Raises `LauncherError`, and then all are
    kept."""
    for address, group in by_address(wanted).items():
        connect(address).ask("remove", nothing, runs=_names(group), force=force, now=now)


def sizes(wanted: Sequence[Run]) -> dict[Run, int]:
    """Bytes of the folders of runs there. Raises `LauncherError`."""
    found: dict[Run, int] = {}
    for address, group in by_address(wanted).items():
        answers = connect(address).ask("sizes", _each(admit.whole, len(group)), runs=_names(group))
        found.update({run: count for (run, _), count in zip(group, answers, strict=True)})
    return found


def resume(selection: Selection, assignments: Mapping[str, str], secrets: Mapping[str, bytes]) -> list[Path]:
    """Resume those runs that can be, with the secrets that they need again. Returns their folders here. Raises
    `LauncherError`."""
    texts = {name: base64.b64encode(content).decode() for name, content in secrets.items()}
    resumed: list[str] = []
    for address, group in by_address(selection.runs).items():
        resumed += connect(address).ask(
            "resume",
            functools.partial(_resumed, [run.id for run, _ in group]),
            runs=_names(group),
            sweep=selection.sweep,
            assignments=dict(assignments),
            secrets=texts,
        )
    folders = [run.folder for run in selection.runs if run.id in resumed]
    for folder in folders:
        remote_record.forget_state(folder)
    return folders


def _resumed(asked: Sequence[str], answer: Any) -> list[str]:
    """The runs that a host resumed, one at least: it refuses where it can resume none. Raises `Refused`."""
    return [admit.choice(id, "a resumed run", asked) for id in admit.items(answer, "runs", len(asked), least=1)]


def _each(check: Callable[[Any, str], T], count: int) -> Callable[[Any], tuple[T, ...]]:
    return lambda answer: admit.list_of(check, count, count)(answer, "its answer")


def _names(group: Iterable[tuple[Run, Any]]) -> list[dict[str, str]]:
    return [{"root": pointer.root, "id": run.id} for run, pointer in group]
