"""What is wrong with a request whatever the host: environment, devices, cluster, and the user's script."""

from __future__ import annotations

import re
import shlex
from typing import Any

from amp_launcher.around.script import NGC_TENSORFLOW1, in_image
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, plain, show
from launcher.config import job_environment, slurm_flags, slurm_units
from launcher.config.schema import ALIASES, OWN_FOLDER, Cluster, Container, Launch, SlurmCluster, SshCluster
from launcher.runs import address as addresses

_OWN = f"{OWN_FOLDER}:"
_GRAPH_REWRITE = re.compile(r"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_(?:[A-Z]+LIST_(?:ADD|REMOVE)|LEVEL)")
"""TensorFlow's own variables for the lists of its graph rewrite, which a trainer sets from `amp`."""
LONGEST_NAME = 60
"""Characters of a run's name."""


def check_launch(launch: Launch, training: Settings) -> None:
    """Refuse keys of launching that contradict each other or can't be carried out anywhere.

    Raises `SettingsError`, or `UsageError` for a host's name.
    """
    _check_environment(launch)
    _check_devices(launch, training.device)
    _check_host(launch.cluster)
    if launch.wait and launch.detach:
        raise SettingsError("wait=true and detach=true contradict each other")
    _check_notify(launch.notify)
    if training.watchdog.action == "restart" and not launch.restart.max:
        raise SettingsError("watchdog.action=restart needs restart.max=N, how often it may")
    # A name is typed where flags are: `rm --now` is another request than a run of that name.
    if launch.name is not None and not re.fullmatch(rf"\w[\w.+-]{{0,{LONGEST_NAME - 1}}}", launch.name):
        raise SettingsError(
            f"name={launch.name} should be up to {LONGEST_NAME} letters, digits, '.', '_', '+' and '-', the first one "
            "a letter, a digit or '_'"
        )
    if not launch.run_root:
        raise SettingsError("run_root= is empty; name a folder")
    if training.framework in ("paddle", "none") and launch.nodes > 1:
        raise SettingsError(f"nodes={launch.nodes}: framework={training.framework} runs on one node here; say nodes=1")
    _check_python(launch, training)
    _check_script(launch, training)
    check_cluster(launch.cluster)
    if launch.container.kind == "none":
        _refuse_without_container(launch, training)
    settings = training.train
    script_decides = training.recipe == "script" and (settings.bare or settings.precision == "script")
    for name in filter(_GRAPH_REWRITE.fullmatch, launch.env):
        if training.framework == "tensorflow" and not script_decides:
            raise SettingsError(
                f"env.{name}: amp decides which operations the graph rewrite converts; say amp.allow, amp.deny, "
                "amp.infer or amp.clear=[OPERATION]"
            )


def _check_notify(command: str | None) -> None:
    """Refuse text that is no command: a shell never reads it."""
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"notify={command}: {error}; its words are split as a shell does") from None
    if not words:
        raise SettingsError("notify= names no program; say notify=PROGRAM, or leave it out")


def _check_environment(launch: Launch) -> None:
    for name in [*launch.env, *launch.secrets]:
        key = f"env.{name}" if name in launch.env else f"secrets.{name}"
        if not job_environment.NAME.fullmatch(name):
            raise SettingsError(f"{key}: {name!r} is not a name for an environment variable", key)
        if job_environment.is_reserved(name):
            instead = "say visible_gpus=[...]" if "VISIBLE_DEVICES" in name else "leave it out"
            if name == "PYTHONPATH":
                instead += (
                    "; a script's modules are found as by `python FILE`, then at the root of its checkout and in src"
                )
            raise SettingsError(f"{key}: {name} is set by the launcher itself; {instead}")
    for name in launch.env:
        if job_environment.looks_secret(name):
            raise SettingsError(
                f"env.{name}: a secret, by its name, would stand in plans and scripts; say secrets.{name}=FILE, or "
                f"secrets.{name} for its value in this shell"
            )
    for name, path in launch.secrets.items():
        if path == "":
            raise SettingsError(
                f"secrets.{name}= names no file; say secrets.{name}=FILE, or secrets.{name} for this shell's value"
            )
    for name in set(launch.env) & set(launch.secrets):
        raise SettingsError(f"{name} is given both as env.{name} and as secrets.{name}", f"env.{name}")


def _check_devices(launch: Launch, device: str) -> None:
    slurm = isinstance(launch.cluster, SlurmCluster)
    if launch.nodes > 1 and not slurm:
        raise SettingsError(f"nodes={launch.nodes} needs cluster=slurm; this is one machine")
    if launch.wait_gpus and slurm:
        raise SettingsError("wait_gpus=true with cluster=slurm: Slurm queues jobs by itself; leave it out")
    for where, no_gpus in (("gpus=0", launch.gpus == 0), ("device=cpu", device == "cpu" and launch.gpus is None)):
        if launch.wait_gpus and no_gpus:
            raise SettingsError(f"wait_gpus=true with {where}: there is no GPU to wait for; leave it out")
    if launch.visible_gpus is None:
        return
    visible, shown = launch.visible_gpus, show(launch.visible_gpus)
    if launch.gpus is not None and launch.gpus != len(visible):
        raise SettingsError(f"gpus={launch.gpus} and visible_gpus={shown} name different numbers of GPUs")
    if len(set(visible)) != len(visible) or any(index < 0 for index in visible):
        raise SettingsError(f"visible_gpus={shown} must be different indices from 0")
    if slurm:
        raise SettingsError(
            f"visible_gpus={shown} with cluster=slurm: Slurm chooses the devices; say gpus={len(visible)}"
        )


def _check_host(cluster: Any) -> None:
    """Refuse text that can name no host. Raises `UsageError`."""
    if isinstance(cluster, SshCluster) and cluster.host is None:
        raise SettingsError("cluster=ssh needs cluster.host=me@host, or an alias of your SSH configuration")
    destination = cluster.host if isinstance(cluster, SshCluster) else getattr(cluster, "login", None)
    if destination is not None:
        addresses.check_destination(destination, f"cluster.{'host' if isinstance(cluster, SshCluster) else 'login'}")


def _check_python(launch: Launch, training: Settings) -> None:
    """Refuse an environment where nothing would run in it."""
    python = launch.python
    if python is None or not (python == "uv" or python.startswith("venv:")):
        return
    if python == "venv:":
        raise SettingsError("python=venv: names no folder; say python=venv:PATH")
    if launch.container.kind != "none":
        where = "python=PATH names one that the image has" if python == "uv" else "name it as python=PATH/bin/python"
        raise SettingsError(
            f"python={python} with container={launch.container.kind}: a container runs the Python of its image, and an "
            f"environment of the host may not run there; {where}"
        )
    if training.recipe == "script" and training.train.command:
        raise SettingsError(
            f"python={python}: a program that is not Python finds nothing of it; launch its Python file instead, as "
            f"`python -m launcher FILE.py python={python} amp=none`"
        )


SIGNALLED_EARLY = 60
"""Slurm may send a job its signal so many seconds before the time asked for."""


def check_cluster(cluster: Cluster) -> None:
    """Refuse what no host can carry out, of a new run and of one that is resumed. Raises `SettingsError`."""
    if isinstance(cluster, SlurmCluster):
        slurm_flags.check_flags(cluster)
    check_limit(cluster)


def check_limit(cluster: Cluster, default: int | None = None, of: str = "") -> None:
    """Refuse a time limit in which a run would be asked to save as soon as it has started; where it has none of its
    own, `default`, in minutes, `of` a partition. Raises `SettingsError`."""
    try:
        limit = slurm_units.minutes(cluster.time) if cluster.time is not None else default
    except ValueError as error:
        raise SettingsError(f"cluster.time={error}") from None
    early = SIGNALLED_EARLY if isinstance(cluster, SlurmCluster) else 0
    if limit is None or 60 * limit > cluster.stop_before + early:
        return
    shown = f"cluster.time={cluster.time}" if cluster.time is not None else f"the time limit of {of}"
    sooner = f", or up to {early} s earlier, as Slurm's signals come" if early else ""
    raise SettingsError(
        f"{shown} is {60 * limit} s, and the run would be asked to save and stop cluster.stop_before="
        f"{cluster.stop_before} s before its end{sooner}: give it more time, or say a smaller cluster.stop_before",
        "cluster.time" if cluster.time is not None else "cluster.stop_before",
    )


def _refuse_without_container(launch: Launch, training: Settings) -> None:
    # A folder of the run's own is there without a container too.
    given = {"image": launch.image, "mounts": [mount for mount in launch.mounts if not mount.startswith(_OWN)]}
    if training.recipe != "script" and training.profile.tool != "dlprof":  # else this host may be a container of it
        given["image.is"] = launch.image_is
    usual = plain(Container())
    given |= {f"container.{name}": value != usual[name] for name, value in plain(launch.container).items()}
    for key in [key for key, value in given.items() if value]:
        message = f"{key}= needs a container: say container=docker, podman, apptainer or pyxis, or leave {key} out"
        raise SettingsError(message, ALIASES.get(key, key))


def _check_script(launch: Launch, training: Settings) -> None:
    recipe, resume_arguments = training.recipe, launch.resume_arguments
    if recipe != "script":
        given = (
            *(("mounts", mount, f"mounts=[{mount}]") for mount in launch.mounts if mount.startswith(_OWN)),
            ("script", launch.script, f"script={launch.script}"),
            ("arguments", launch.arguments, f"-- {shlex.join(launch.arguments)}"),
            *((f"sweep.{name}", name, f"sweep.{name}={value}") for name, value in launch.sweep.items()),
            ("include", launch.include, f"script.include={show(launch.include)}"),
            ("inputs", launch.inputs, f"script.inputs={show(launch.inputs)}"),
            ("workdir", launch.workdir, f"workdir={launch.workdir}"),
            ("stop_signal", launch.stop_signal != Launch().stop_signal, f"script.stop_signal={launch.stop_signal}"),
            ("resume_arguments", resume_arguments, f"script.resume_arguments={show(resume_arguments)}"),
        )
        for key, value, typed in given:
            if value:
                raise SettingsError(
                    f"{typed} is for a script, and this is recipe={recipe}; name the script as the first word", key
                )
        return
    if not launch.script:
        raise SettingsError("recipe=script needs script=FILE; its arguments go after --", "script")
    if launch.include and in_image(launch.script):
        raise SettingsError(
            f"script.include={show(launch.include)}: {launch.script} is in the image, and no files go along with it",
            "include",
        )
    if launch.inputs and in_image(launch.script):
        raise SettingsError(
            f"script.inputs={show(launch.inputs)}: {launch.script} starts in a folder of the image, where nothing is "
            "linked; say mounts=[SOURCE:TARGET]",
            "inputs",
        )
    if training.train.bare and launch.stop_signal not in ("TERM", None):
        raise SettingsError(
            f"script.stop_signal={launch.stop_signal}: with train.bare=true run.sh sends TERM, as nothing in the "
            f"script's processes could raise {launch.stop_signal}; say TERM or null",
            "stop_signal",
        )
    if training.train.rate and not training.train.bare:
        raise SettingsError(
            f"train.rate={training.train.rate}: the steps of a script are counted; say train.bare=true as well, or "
            "leave it out"
        )
    if in_image(launch.script) and launch.container.kind == "none" and not launch.image_is:
        raise SettingsError(
            f"script={launch.script} is in an image, and there is no container; say container=, or where this host is "
            "a container of that image, which one it is, as image.is=ngc-tensorflow1:19.08"
        )
    if training.train.bare and training.framework == "tensorflow" and launch.nodes > 1:
        raise SettingsError(
            f"nodes={launch.nodes}: with train.bare=true nothing tells TensorFlow's processes of each other; say "
            "nodes=1"
        )
    if training.train.precision != "script":
        for name in NGC_TENSORFLOW1:
            if name in launch.env:
                raise SettingsError(
                    f"env.{name}: amp=o0 and amp=o1 set it in NVIDIA's TensorFlow 1 images, and every other TensorFlow "
                    "passes over it in silence; leave it out"
                )
