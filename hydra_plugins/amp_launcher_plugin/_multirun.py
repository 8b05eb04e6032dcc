"""Jobs of a multirun as functions of an executor, one batch for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.errors import CompactHydraException

import hydra_plugins
from hydra_plugins.amp_launcher_plugin import launchers
from hydra_plugins.amp_launcher_plugin._job import Application, Job, JobAgain
from launcher import LauncherError, LocalExecutor, SlurmExecutor
from launcher.executors import functions
from launcher.runs import run_ids, store
from launcher.runs.schema import ResultRecord

CONFS: dict[str, type] = {"local": launchers.LocalConf, "slurm": launchers.SlurmConf}
EXECUTORS = {"local": LocalExecutor, "slurm": SlurmExecutor}
SHARED = ("name", "timeout_min", "gpus_per_node", "tasks_per_node", "nodes", "mem_gb", "cpus_per_task")
"""Keys that are parameters of executors by the same name; others of Slurm begin with slurm_ there."""
OF_SLURM = "partition account qos constraint exclude gres wckey signal_delay_s array_parallelism setup".split()
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that needs no value of its jobs."""


def launch(own: launchers._Launcher, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Run a batch of jobs and return what each returned; with `wait=false` return at once, with no results.

    Raises `CompactHydraException` with the launcher's message for what can't be submitted.
    """
    import logging

    setup_globals()
    config = own.config
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    log = logging.getLogger("hydra.amp_launcher")
    sweep_dir = Path(str(config.hydra.sweep.dir))
    sweep_dir.mkdir(parents=True, exist_ok=True)
    try:
        check_keys(own.keys, own.PLACE, str(config.hydra.sweeper.get("_target_", BASIC)))
        jobs = submit(own, overrides, first)
    except (LauncherError, ValueError) as error:  # the latter of a wrong gres
        raise CompactHydraException(f"hydra/launcher=amp_{own.PLACE}: {error}") from None
    run = run_ids.sweep_of(jobs[0].run_id) or jobs[0].run_id
    log.info(f"submitted {len(jobs)} job{'s' * (len(jobs) > 1)} to {own.PLACE}: python -m launcher watch {run}")
    for number, (job, words) in enumerate(zip(jobs, overrides, strict=True), first):
        log.info(f"\t#{number} : {job.run_id} : {' '.join(filter_overrides(words))}")
    if not own.keys["wait"]:
        return []
    try:
        for job in jobs:
            job.wait()
    except KeyboardInterrupt:
        log.info(f"the jobs go on: python -m launcher cancel {run}")
        raise
    for number, job in enumerate(jobs, first):
        if own.keys["amp"] is not None and (proof := proof_of(job.run_dir)):
            log.info(f"\t#{number} : {job.run_id} : amp={own.keys['amp']} {proof}")
    return [returned(job, words) for job, words in zip(jobs, overrides, strict=True)]


def proof_of(run: Path) -> str:
    """What a run's result says of its mode; empty where it claims none."""
    result = store.read(ResultRecord, run / "result.json")
    if result.status is None:
        return "unknown: it left no result"
    seen = result.observed
    return f"{seen.verdict or 'nothing to prove'}: {seen.why}" if seen.why else ""


def check_keys(keys: Mapping[str, Any], place: str, sweeper: str) -> None:
    """Refuse keys that can't be carried out. Raises `LauncherError`."""
    known = [field.name for field in dataclasses.fields(CONFS[place]) if not field.name.startswith("_")]
    if unknown := [key for key in keys if key not in known]:
        raise LauncherError(f"hydra.launcher.{unknown[0]} is not a key of it ({', '.join(known)})")
    for key in ("mem_gb", "cpus_per_task"):
        if place == "local" and keys.get(key):
            raise LauncherError(f"hydra.launcher.{key}={keys[key]} is for amp_slurm; nothing limits a job of amp_local")
    if not keys["wait"] and sweeper != BASIC:
        raise LauncherError(f"hydra.launcher.wait=false gives no values to {sweeper}, which chooses by them")


def submit(own: launchers._Launcher, overrides: Sequence[Sequence[str]], first: int) -> list[Any]:
    """Submit a batch as one sweep, in an array on Slurm. Raises `LauncherError`."""
    keys = own.keys
    words_of_all = list(words_of(keys, own.PLACE, os.path.abspath(own.config.hydra.sweep.dir)))
    executor = EXECUTORS[own.PLACE](keys["run_root"], words_of_all)
    given = {key: keys[key] for key in SHARED if keys.get(key) is not None}
    given |= {f"slurm_{key}": keys[key] for key in OF_SLURM if keys.get(key) is not None}
    if "name" in given:
        given["name"] = re.sub(r"[^\w.+-]", "-", str(given["name"]))[:60] or "hydra"
    executor.update_parameters(**given)
    with plugins_by_value() if is_contained(keys) else contextlib.nullcontext():
        common = Application(own.hydra_context, own.task_function, own.config, Singleton.get_state())
        try:
            application = cloudpickle.dumps(common)
        except Exception as error:  # pickling runs whatever code the values bring
            raise LauncherError(f"the application can't be pickled: {type(error).__name__}: {error}") from None
        file = functions.file_of(own.task_function)
        kind = JobAgain if keys.get("max_num_timeout") else Job
        with executor.batch():
            return [
                executor.submit(kind(application, list(words), number, swept, file))
                for number, (words, swept) in enumerate(zip(overrides, swept_of(overrides), strict=True), first)
            ]


@contextlib.contextmanager
def plugins_by_value() -> Iterator[None]:
    """While open, plugins are pickled with their code, as an image may lack them."""
    cloudpickle.register_pickle_by_value(hydra_plugins)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(hydra_plugins)


def swept_of(overrides: Sequence[Sequence[str]]) -> list[tuple[tuple[str, str], ...]]:
    """Of each job the overrides in which the jobs differ."""
    shared = set.intersection(*map(set, overrides))
    return [tuple(word.lstrip("+").partition("=")[::2] for word in words if word not in shared) for words in overrides]


def is_contained(keys: Mapping[str, Any]) -> bool:
    return keys["container"] not in (None, "none") or any(str(word).startswith("container=") for word in keys["words"])


def words_of(keys: Mapping[str, Any], place: str, output: str) -> Iterator[str]:
    """Settings of every job. Those in containers find the folder of their output."""
    if place == "slurm" or is_contained(keys):
        yield "env_from=shell"
    if again := keys.get("max_num_timeout"):
        yield f"cluster.max_requeues={again}"
    if place == "slurm" and keys.get("gpus_per_node") is None and keys.get("gres") is None:
        yield "gpus=0"
    for key in ("amp", "container", "image", "python"):
        if keys[key] is not None:
            yield f"{key}={keys[key]}"
    is_elsewhere = is_contained(keys) and not output.startswith(f"{os.getcwd()}/")
    if mounts := [*keys["mounts"], *([f"{output}:{output}"] * is_elsewhere)]:
        yield f"mounts={json.dumps(mounts)}"
    yield from map(str, keys["words"])


def returned(job: Any, overrides: Sequence[str]) -> JobReturn:
    """What a job that has ended returned; Hydra raises the error of one that failed."""
    error = job.exception()
    if error is None:
        result: JobReturn = job.results()[0]
        return result
    return JobReturn(
        overrides=list(overrides), status=JobStatus.FAILED, _return_value=CompactHydraException(str(error))
    )
