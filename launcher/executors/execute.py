"""A plan's run folder, and `execute`, which any submitit executor can run with a plan."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import launcher
from amp_launcher import records
from launcher.code import code_store, snapshot
from launcher.code.snapshot import Code
from launcher.config import job_environment, shell_record
from launcher.errors import LauncherError, UsageError, of_system
from launcher.plan import container, record
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.runs import ownership, run_ids, run_roots, store
from launcher.runs.schema import Status
from launcher.script import comparison, render

MAX_NAMES_TRIED = 100
_PARTS = ("code", "script")
"""Of provenance.json: the launcher's training side, with the digest of the whole snapshot, and the user's own script.
In a shared run uncommitted changes of each are in a file, `code.diff` and `script.diff`."""


def prepare(
    plan: Plan,
    code: Mapping[str, Path] | None = None,
    came_from: Mapping[str, Any] | None = None,
    passed: Mapping[str, str] | None = None,
    populate: Callable[[Path], None] | None = None,
) -> Path:
    """Make a plan's run folder, ready to be started: snapshot, `plan.json`, `run.sh`, `provenance.json`.

    An unbound plan gets a new run id. `code` is the files that the plan's digest was taken of; without it the snapshot
    has to be there already. `came_from` is `provenance(plan)` where that is known already, since asking git takes
    longer than all the rest. `passed` is the values of the variables that the job gets from the shell where it was
    asked for; without them they are this process's. `populate` puts further files into the new folder. Raises
    `UsageError` where the folder can't be made; then nothing is left.
    """
    root = Path(plan.run_root)
    try:
        folder, plan = _create(root, plan)
    except OSError as error:
        raise UsageError(f"run_root={plan.run_root}: {of_system(error)}") from None
    try:
        if populate:
            populate(folder)
        # First the plan, which names the snapshot: `rm` deletes those that no plan names.
        write(plan, folder, passed)
        _check_cache(plan)
        place = Path(plan.code_dir).parent
        if code is not None:
            code_store.store(place, plan.code, code)
        elif not code_store.is_there(place, plan.code):
            raise UsageError(f"the code snapshot {plan.code_dir} is not there; run the command again")
        _write_provenance(folder, came_from or provenance(plan), shared=plan.shared is not None)
    except OSError as error:
        discard(folder)
        raise UsageError(f"run_root={plan.run_root}: {of_system(error, folder)}") from None
    except BaseException:
        discard(folder)
        raise
    try:
        run_roots.remember(root)
    except OSError as error:
        print(f"note: `ls` finds this run with run_root={root} only: {error}", file=sys.stderr)
    return folder


def _check_cache(plan: Plan) -> None:
    """Refuse another user's folder for what outlives containers, where jobs find their HOME. Raises `UsageError`."""
    cache = plan.own_folder(container.CACHE)
    if plan.container is not None and os.path.lexists(cache) and not ownership.is_mine(cache, plan.run_root):
        raise UsageError(f"{cache} is another user's, and would be the HOME of your containers; name another run_root")


def _write_provenance(folder: Path, came_from: Mapping[str, Any], *, shared: bool) -> None:
    """`provenance.json`; where a group reads that, uncommitted code is in a file of its owner's alone."""
    for part in _PARTS:
        origin = came_from.get(part) or {}
        if shared and origin.get("diff"):
            with open(folder / f"{part}.diff", "w", encoding="utf-8", opener=records.private) as stream:
                stream.write(origin["diff"])
            came_from = {**came_from, part: {**origin, "diff": ""}}
    store.write_json(folder / "provenance.json", came_from)


def write(plan: Plan, folder: Path, passed: Mapping[str, str] | None = None) -> None:
    """`plan.json` of the run and of its arms, and the scripts that carry them out."""
    store.write_json(folder / "plan.json", record.to_json(plan))
    for arm in plan.arms:
        for made in (Path(arm.run_dir).parent, Path(arm.run_dir)):
            with contextlib.suppress(FileExistsError):
                store.make_folder(made, shared=plan.shared is not None)
        store.write_json(Path(arm.run_dir) / "plan.json", record.to_json(arm))
    write_scripts(plan, folder, passed)


def write_scripts(plan: Plan, folder: Path, passed: Mapping[str, str] | None = None) -> None:
    """The scripts of the run and of its arms, and its variables and secrets that aren't there yet."""
    _write_environment(plan, folder, passed)
    store.write_text(folder / render.SUPERVISOR, render.supervisor(plan), records.record)
    store.write_bytes(folder / "run.sh", render.render(plan).encode(), records.record, mode=0o700)
    if plan.arms:
        from launcher.ssh.archive import archive  # which plain runs do without

        store.write_bytes(folder / comparison.LAUNCHER, archive()[1], records.record)
    for arm in plan.arms:
        write_scripts(arm, Path(arm.run_dir), passed)


def _write_environment(plan: Plan, folder: Path, passed: Mapping[str, str] | None) -> None:
    if (plan.inherited or plan.passed) and not (folder / job_environment.FILE).exists():
        given = dict(os.environ) if passed is None else passed
        job_environment.write_variables(folder, plan.inherited, plan.passed, given)
    if plan.inherits_shell and not plan.arm and not (folder / shell_record.FILE).exists():
        shell_record.write(folder, os.environ)
    if plan.arm or passed is not None or plan.cluster.get("host") or plan.cluster.get("login"):
        return  # they come from where the run was asked for
    lacking = [path for path in job_environment.own_secrets(plan.secrets, plan.run_dir).values() if not path.exists()]
    for path in lacking:
        if path.name not in os.environ:
            raise UsageError(f"secrets.{path.name} ended with the run, and {path.name} is not set in this shell")
    job_environment.write_secrets({path: os.environb[path.name.encode()] for path in lacking})


def discard(folder: Path) -> None:
    """Delete a run folder that was never started."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    store.clear_unfinished(folder.parent, folder.name)


def execute(plan: Plan) -> dict[str, Any]:
    """Run a plan's script to its end and return its result.

    Give this to any submitit executor: `executor.submit(execute, plan)`. Our own executors start the script itself and
    never pickle this function; stock ones run it where they run functions, on a machine that has this package and the
    plan's snapshot. Raises `LauncherError` if the run did not end well.
    """
    folder = _prepare_here(plan) if plan.run_id == PLACEHOLDER else Path(plan.run_dir)
    if not (folder / "run.sh").exists():
        raise LauncherError(f"{folder} has no run.sh; prepare the plan first")
    # The script records its end in status.json. It has a session of its own, since it ends by a signal to its whole
    # process group, which must not be the caller's.
    argv = ["bash", str(folder / "run.sh")]
    started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment_of(plan), start_new_session=True)
    try:
        started.wait()
    except BaseException:
        started.terminate()
        raise
    return outcome(folder)


def _prepare_here(plan: Plan) -> Path:
    """The run folder of a plan whose code is this package's own, or is in the run root already."""
    from launcher.code.job_files import code_files

    there = code_store.is_there(Path(plan.code_dir).parent, plan.code)
    return prepare(plan, None if there or plan.script else code_files())


def outcome(folder: Path) -> dict[str, Any]:
    """The result of an ended run. Raises `LauncherError` with the reason if it did not end well."""
    status = store.read(Status, folder / "status.json")
    if status.state != "done":
        reason = status.reason or "it left no status"
        raise LauncherError(f"run {folder.name} is {status.state or 'lost'}: {reason} (logs in {folder}/attempts)")
    return store.read_or_empty(folder / "result.json")


def environment() -> dict[str, str]:
    """The environment of what this process starts on this host: see `job_environment`."""
    return job_environment.of_place(os.environ)


def environment_of(plan: Plan) -> dict[str, str]:
    """The environment of a plan's run that this process starts."""
    if plan.inherits_shell:
        return job_environment.for_script(os.environ, bare=bool(plan.settings["train"].get("bare")))
    queued, contained = plan.queue == "slurm", plan.container is not None
    return environment() | job_environment.search_path(os.environ, os.getcwd(), queued=queued, contained=contained)


def provenance(plan: Plan, code: Code | None = None) -> dict[str, Any]:
    """Where a run, or each of a sweep, comes from: enough to repeat it, without its environment, which may hold
    secrets. `code` is a fact of the prober."""
    if code is None:
        from launcher.code.job_files import code_files, code_root

        code = snapshot.describe(code_root().parent, code_files())
    paths = code.paths
    own = [path for name, path in paths.items() if name.startswith(f"{snapshot.SCRIPT}/")]
    return {
        "schema": 1,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": ["python", "-m", "launcher", *plan.command],
        "launcher": launcher.__version__,
        "host": plan.host,
        "cwd": os.getcwd(),
        "python": sys.version.split()[0],
        "code": {"digest": plan.code, **snapshot.origin(Path(code.root), list(paths.values()))},
        **({"script": snapshot.origin(Path(code.script), own)} if code.script else {}),
    }


def _create(root: Path, plan: Plan) -> tuple[Path, Plan]:
    if plan.run_id != PLACEHOLDER:
        return store.create(root, plan.run_id, shared=plan.shared is not None), plan
    for _ in range(MAX_NAMES_TRIED):
        bound = plan.bind(run_ids.new_id(time.time()))
        try:
            return store.create(root, bound.run_id, shared=plan.shared is not None), bound
        except FileExistsError:
            continue
    raise UsageError(f"no free run id in {root} after {MAX_NAMES_TRIED} tries")
