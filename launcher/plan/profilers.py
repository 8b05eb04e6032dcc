"""NVIDIA's profilers as words in front of a trainer's command, and where they can't stand there.

The framework's own profiler needs no such words: the trainer is told by its settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_launcher.typed import SettingsError
from launcher.config.schema import Launch
from launcher.config.spec import JobSpec
from launcher.probe.facts import Facts

FOLDER = "profile"
"""Folder of a run for what profilers leave."""


def prefix(settings: dict[str, Any], run_dir: str, *, bare: bool) -> tuple[str, ...]:
    """The words in front of a run's command, from its settings as plain values. Our trainers and wrappers in torch open
    and close the profiler's range themselves, so that their warm-up is not recorded; elsewhere, and in a script started
    bare, all is. An option of `dlprof` names the first iteration to count."""
    profile = settings["profile"]
    tool = profile["tool"]
    in_range = settings["framework"] == "torch" and not bare
    if tool == "nsys":
        shared = ("--trace=cuda,cudnn,cublas,nvtx,osrt", "--force-overwrite=true")
        ranged = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        return ("nsys", "profile", *shared, *(ranged if in_range else ()), f"--output={run_dir}/{FOLDER}/nsys")
    if tool == "ncu":
        shared, off = ("--target-processes=all", "--force-overwrite"), ("--profile-from-start=off",)
        return ("ncu", *shared, *(off if in_range else ()), f"--export={run_dir}/{FOLDER}/ncu")
    if tool == "dlprof":
        node = (f"--key_node={profile['key_node']}",) if profile["key_node"] else ()
        asked = profile.get("reports")  # plans of before it was a key lack it
        reports = (f"--reports={','.join(asked)}",) if asked else ()
        return ("dlprof", *node, f"--iter_start={profile['start']}", *reports)
    return ()


def check_profiler(spec: JobSpec, facts: Facts, device: str) -> None:
    """Refuse a profiler that isn't there or would record nothing. Raises `SettingsError`."""
    profile, launch = spec.training.profile, spec.launch
    if profile.tool == "none":
        return
    bare = spec.recipe.name == "script" and spec.training.train.bare
    if profile.tool == "framework":
        if bare:
            raise SettingsError(
                "profile=framework runs inside the process, and train.bare=true starts the script alone; "
                "say profile=nsys",
            )
        return
    if device == "cpu":
        raise SettingsError(f"profile={profile.tool} records GPUs, and this job runs on a CPU; say profile=framework")
    if launch.nodes > 1:
        raise SettingsError(f"profile={profile.tool} with nodes={launch.nodes}: it records one node; say nodes=1")
    contained = launch.container.kind != "none"
    if profile.tool == "dlprof" and not _has_dlprof(launch):
        raise SettingsError(
            "profile=dlprof needs one of NVIDIA's images from 19.09 to 21.12 that hold it (`image list` tells which), "
            "and recipe=script with train.bare=true, as they are older than our own trainers; say profile=nsys, or "
            "image.is=ngc-tensorflow:21.04 of an image that is one of them under another name",
        )
    if not contained and launch.cluster.kind == "local" and profile.tool not in facts.profilers:
        raise SettingsError(
            f"profile={profile.tool}: there is no {profile.tool} on the PATH of {facts.host}; say profile=framework",
        )


def advice(spec: JobSpec) -> Iterator[str]:
    """How to find the operation that DLProf counts iterations by. Source: its `--help` (`--key_node`, `--reports`)."""
    profile = spec.training.profile
    if profile.tool == "dlprof" and not profile.key_node:
        yield (
            "profile=dlprof without profile.key_node counts iterations by global_step, which is TensorFlow 1's; for "
            "another, say profile.reports=[detail] once and choose an operation with as many calls as steps"
        )


def _has_dlprof(launch: Launch) -> bool:
    if launch.image is None and launch.image_is is None:
        return False
    from launcher.containers import references

    release = references.release_of(launch.image, launch.image_is)
    return release is not None and release.dlprof
