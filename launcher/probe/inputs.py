"""What jobs take from this machine, wherever they run: code, scripts, secrets, variables of the shell."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from amp_launcher.around import script_source
from launcher.code import job_files, snapshot, uv_project
from launcher.code.uv_project import UvProject
from launcher.config import job_environment, script_text
from launcher.config.paths import expanded
from launcher.config.spec import JobSpec
from launcher.errors import UsageError
from launcher.probe.facts import Facts, Script
from launcher.probe.pythons import PACKAGES
from launcher.runs import address as addresses

PROFILERS = ("nsys", "ncu", "dlprof")
"""NVIDIA's profilers that start the trainer themselves."""


def project(specs: Sequence[JobSpec]) -> UvProject | None:
    """The project of the jobs with `python=uv`; None without one. Raises `UsageError` where they have several: jobs
    that are started together share the code that goes along."""
    starts = {}
    for spec in specs:
        if spec.launch.python == uv_project.WORD:
            named = next(iter(job_files.scripts([spec])), None)
            start = expanded(named).resolve().parent if named else Path.cwd()
            starts[start] = f"beside {named}" if named else "in the current folder"
    found = [uv_project.find(start, where) for start, where in starts.items()]
    if len({(one.lock, one.member) for one in found}) > 1:
        locks = " and ".join(sorted({str(one.lock) for one in found}))
        raise UsageError(f"python=uv: these jobs have several projects ({locks}); start those of each by themselves")
    return found[0] if found else None


def with_inputs(facts: Facts, specs: Sequence[JobSpec]) -> Facts:
    """A host's facts completed with what the jobs take from here. Raises `LauncherError`."""
    of_uv = project(specs)
    named = {path for spec in specs for path in spec.launch.secrets.values() if path is not None}
    of_shell = {name for spec in specs for name, path in spec.launch.secrets.items() if path is None}
    secrets = {path: expanded(path) for path in named if expanded(path).exists()}
    bad = {path: why for path, file in secrets.items() if (why := job_environment.file_problem(file))}
    bad |= {f"${name}": why for name in of_shell if (why := _variable_problem(name))}
    scripts, files = _scripts(specs)
    roots = {script.root for script in scripts.values()}
    return dataclasses.replace(
        facts,
        missing=tuple(sorted({*facts.missing, *(named - secrets.keys())})),
        open_secrets=tuple(sorted(path for path, file in secrets.items() if file.stat().st_mode & 0o077)),
        bad_secrets=bad,
        shell=job_environment.of_shell(os.environ),
        profilers=tuple(program for program in PROFILERS if shutil.which(program)),
        scripts=scripts,
        uv_project=of_uv.member if of_uv else "",
        uv_lock=str(of_uv.lock) if of_uv else "",
        packages=facts.packages if facts.uv_is_made else _locked(of_uv),
        code=snapshot.describe(
            job_files.code_root().parent,
            {**job_files.code_files(specs), **files, **(of_uv.files if of_uv else {})},
            Path(roots.pop()) if len(roots) == 1 else None,
        ),
    )


def _locked(of_uv: UvProject | None) -> dict[str, str]:
    """The frameworks that an environment will have, from the lock file."""
    locked = of_uv.packages if of_uv else {}
    builds = {module: [name.partition("+")[0] for name in names] for module, names in PACKAGES.items()}
    return {module: locked[name] for module, names in builds.items() for name in names if name in locked}


def _scripts(specs: Sequence[JobSpec]) -> tuple[dict[str, Script], dict[str, Path]]:
    """The scripts of the jobs as they were named, and the files that are sent along, by their names in the snapshot."""
    names = job_files.scripts(specs)
    if not names:
        return {}, {}
    from launcher.code import user_code

    by_name: dict[str, Script] = {}
    files: dict[str, Path] = {}
    bare = all(spec.training.train.bare for spec in specs if spec.launch.script)
    for named in names:
        path = expanded(named).resolve()
        user_code.check_script(named, path, alone=bare)
        its = [spec for spec in specs if spec.launch.script == named]
        if all(spec.training.train.command for spec in its):
            script_text.check_program(named, path)
        else:
            script_text.refuse_non_python(named, path, exactly=any(map(_starts_here, its)))
        collected = user_code.collect(path, job_files.included(specs, named))
        modules = user_code.imported(path, collected)
        if name := next((name for name, file in collected.files.items() if files.get(name, file) != file), None):
            raise UsageError(
                f"{files[name]} and {collected.files[name]} would be one file of the code that these jobs share: put "
                "their scripts into one folder or checkout, or start them apart, with after="
            )
        files.update(collected.files)
        by_name[named] = Script(
            path=str(path),
            name=user_code.name_in_snapshot(path),
            source=script_source.read(path.read_bytes()),
            root=str(collected.root),
            credentials=collected.credentials,
            left_out=collected.left_out,
            lacking=user_code.left_out_imports(modules, collected),
            saves=script_text.names_checkpoints((path, *modules)),
            beside=user_code.left_out_beside(path, collected),
        )
    return by_name, files


def _starts_here(spec: JobSpec) -> bool:
    """Whether a job runs in the Python of this process."""
    launch = spec.launch
    return launch.python is None and launch.container.kind == "none" and addresses.of(launch.cluster) is None


def _variable_problem(name: str) -> str:
    if name not in os.environ:
        return "is not set in this shell"
    return job_environment.problem(os.environb[name.encode()])
