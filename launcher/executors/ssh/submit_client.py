"""Submission to a host: the code where the host lacks it, then the plans, with the request to start them.

Run ids are chosen and the records of the runs written here before anything is sent, so a lost connection loses no run.
A request that is sent again starts nothing twice: the host knows it by its token.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import admit
from launcher.code.code_archive import packed_files
from launcher.code.job_files import code_files
from launcher.config.paths import expanded
from launcher.errors import LauncherError, UsageError
from launcher.executors import execute, interrupts
from launcher.plan.model import Plan
from launcher.plan.record import to_json
from launcher.runs import processes, remote_record, run_ids, store
from launcher.runs.address import Address
from launcher.runs.remote_record import Known, Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh import remote_status
from launcher.ssh.failures import Lost, Unreachable
from launcher.ssh.host import connect, nothing

TRIES = 3


def submit(
    plans: Sequence[Plan],
    came_from: Mapping[str, Any],
    codes: Mapping[str, Mapping[str, Path]],
    address: Address,
    secrets: Sequence[Mapping[str, str | None]],
) -> list[Path]:
    """Submit one run, or the runs of a sweep, to a host. Returns their folders here. `came_from` is their provenance;
    `codes` is the files of snapshots, by digest; `secrets` is, for each plan, that of `Source`.

    Raises `LauncherError` if the host or its queue refuses; then no run is left, but the code that was sent stays
    there for the next try. Raises `Unreachable` where the host was lost in between: then `ls` shows the state of the
    runs, once it answers. Raises `HandedOver` for Ctrl-C while the host was asked; before that it leaves no run.
    """
    if len({plan.code for plan in plans}) > 1:
        raise UsageError("the plans of a batch run different code; over SSH, submit each in a batch of its own")
    code = codes.get(plans[0].code) or code_files()
    if any(plan.secrets and not files for plan, files in zip(plans, secrets, strict=True)):
        raise UsageError("a plan with secrets is submitted by the executor that made it")
    with interrupts.raised():
        contents = [{name: _content(name, path) for name, path in files.items()} for files in secrets]
        send_code(plans[0], code, address)
    token = os.urandom(16).hex()
    folders = reserve([plan.name for plan in plans], address, plans[0].run_root, token)
    bound = [to_json(plan.bind(folder.name)) for plan, folder in zip(plans, folders, strict=True)]
    message = {
        "plans": bound,
        "came_from": {**came_from, "token": token},
        "secrets": contents,
        "passed": {name: os.environ[name] for plan in plans for name in plan.passed if name in os.environ},
    }
    sending = False
    try:
        with handing_over(folders), interrupts.raised():
            sending = True
            _hand_over(address, message)
    except KeyboardInterrupt:
        if sending:
            raise interrupts.HandedOver(folders) from None
        _take_back(folders)
        raise
    for folder, plan in zip(folders, bound, strict=True):
        store.write_json(folder / "plan.json", plan)
    return folders


@contextlib.contextmanager
def handing_over(folders: Sequence[Path]) -> Iterator[None]:
    """Have a host start the runs of these records, which are queued then. Where it refuses, the records of runs that it
    does not have go. Where it is lost in between, all stay: `ls` shows the state once it answers. Raises
    `LauncherError`."""
    try:
        yield
    except Unreachable as error:
        name = run_ids.sweep_of(folders[0].name) or folders[0].name
        raise Unreachable(
            f"{error}\n{name} may have been started or not; `ls {name}` says so once it answers"
        ) from None
    except LauncherError:
        _take_back_refused(folders)
        raise
    for folder in folders:
        remote_record.remember(folder, Known(state=State("queued"), seen=time.time()))
        remote_record.confirm(folder)


def _content(name: str, path: str | None) -> str:
    content = os.environb[name.encode()] if path is None else expanded(path).read_bytes()
    return base64.b64encode(content).decode()


def send_code(plan: Plan, code: Mapping[str, Path], address: Address) -> None:
    """Send a host the code of a plan, unless it has that. Raises `LauncherError`."""
    host = connect(address)
    if not host.ask("has_code", lambda answer: admit.flag(answer, "whether the code is there"), folder=plan.code_dir):
        data, shared = packed_files(code), plan.shared is not None
        _ask_again_when_lost(lambda: host.ask("write_code", nothing, data, folder=plan.code_dir, shared=shared))


def reserve(names: Sequence[str], address: Address, root: str, token: str) -> list[Path]:
    """Records here of runs of these names under new ids, as the cells of a sweep where there are several. All or
    none."""
    pointer = Pointer(
        address=address, root=root, token=token, submitter=processes.identity(os.getpid()), created=time.time()
    )
    count = len(names)
    while True:
        identity = run_ids.new_id(time.time())
        ids = [run_ids.cell_id(identity, index, count) for index in range(count)] if count > 1 else [identity]
        folders: list[Path] = []
        try:
            for run, name in zip(ids, names, strict=True):
                folders.append(remote_record.create(run, pointer._replace(name=name)))
            return folders
        except BaseException as error:
            _take_back(folders)
            if not isinstance(error, FileExistsError):
                raise


def _take_back_refused(folders: Sequence[Path]) -> None:
    """Remove the records of runs that a host refused, but not of those that it has: a queue may have accepted a part of
    a sweep, or the host an earlier try whose connection was lost."""
    root, names = str(folders[0].parent), {folder.name for folder in folders}
    for seen in remote_status.states_of_remote([Run(root, name) for name in sorted(names)]):
        pointer = remote_record.read(seen.run.folder)
        if seen.state.name != "unreachable" and pointer is not None and pointer.submitter is not None:
            names.remove(seen.run.id)
    _take_back([folder for folder in folders if folder.name not in names])
    if names:
        name = run_ids.sweep_of(folders[0].name) or folders[0].name
        kept = f"{len(names)} of its {len(folders)} runs" if len(folders) > 1 else "it"
        print(f"{name} was refused, but {kept} may have been started; `ls {name}` says so", file=sys.stderr)


def _take_back(folders: Sequence[Path]) -> None:
    for folder in folders:
        execute.discard(folder)


def _hand_over(address: Address, message: Mapping[str, Any]) -> None:
    host = connect(address)
    data = zlib.compress(json.dumps(message).encode(), 6)
    _ask_again_when_lost(lambda: host.ask("submit", functools.partial(_names, message["plans"]), data))


def _ask_again_when_lost(ask: Callable[[], object]) -> None:
    """Ask until the host has answered: after a lost connection it may have done the work already, and says so when
    asked again."""
    for tried in range(1, TRIES + 1):
        try:
            ask()
            return
        except Lost as error:
            if tried == TRIES:
                raise
            print(f"{error}; asking again", file=sys.stderr)
            time.sleep(tried)


def _names(plans: Sequence[Mapping[str, Any]], answer: Any) -> list[str]:
    """The runs that the host has started, now or before. Raises `Refused` for any other than the submitted ones."""
    given = [plan["run_id"] for plan in plans]
    return [admit.choice(name, "a run", given) for name in admit.items(answer, "runs", len(given), least=len(given))]
