"""The keys that a person can set, with their types: the training settings and what belongs to launching."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, described, fields_of, is_group, is_text, least, plain, setting, show

OWN_FOLDER = "run"
"""As `workdir=run`: a folder of the run's own."""
MAX_SAMPLE_SECONDS = 24 * 60 * 60
"""The longest pause between two samples of telemetry."""
MAX_WARNING_SECONDS = 65535
"""The longest time before a job's end that sbatch takes in `--signal`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What every kind of cluster has."""

    setup: tuple[str, ...] = setting(
        (), "lines of bash that run before the job, as module load; the only shell text taken"
    )
    time: str | None = setting(None, "time limit, as Slurm writes it: 90, 1:30:00, 2-12:00")
    stop_before: int = setting(
        30, "seconds that a run which is asked to stop has to save and end, before it is killed", least(1)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCluster(Cluster):
    """This machine."""

    kind: Literal["local"] = setting("local", "this machine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach(Cluster):
    """How a cluster on another machine is reached."""

    transport: Literal["fabric", "openssh"] = setting(
        "fabric", "what connects: fabric, or the system's ssh with its open master connection"
    )
    python: str | None = setting(None, "Python on the remote host; null is python3")
    ssh_config: str | None = setting(None, "SSH configuration file; null is yours and the system's")
    connect_timeout: int = setting(15, "seconds until connecting is given up", least(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class SshCluster(Reach):
    """A machine reached over SSH. Paths are those of that machine, except of secrets."""

    kind: Literal["ssh"] = setting("ssh", "a machine reached over SSH")
    host: str | None = setting(None, "the machine: me@host:port, or an alias of your SSH configuration")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmCluster(Reach):
    """A Slurm cluster. Empty values leave the decision to the cluster."""

    kind: Literal["slurm"] = setting("slurm", "a Slurm cluster")
    login: str | None = setting(None, "login node to submit from, as cluster.host of cluster=ssh; null is this machine")
    partition: str | None = setting(None, "partition to submit to")
    account: str | None = setting(None, "account to charge")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "node features, such as a100&nvlink")
    reservation: str | None = setting(None, "reservation to use")
    exclude: str | None = setting(None, "nodes that are not taken, such as node[1-3],node7")
    nodelist: str | None = setting(None, "nodes that all are taken, such as node[1-2]")
    cpus: int | None = setting(
        None, "CPUs per node; null with GPUs is the share that they have of a node of the partition", least(1)
    )
    mem: str | None = setting(None, "memory per node, such as 64G")
    flags: tuple[str, ...] = setting((), "further sbatch flags, one item each, such as --nice=100")
    gpu_flag: Literal["gpus-per-node", "gres"] = setting("gpus-per-node", "sbatch's option for GPUs on this cluster")
    parallel: int | None = setting(None, "cells of a sweep that may run at once", least(1))
    max_requeues: int = setting(
        3, "times a run is put back into the queue after a time limit; preemptions are not counted", least(0)
    )
    stop_before: int = setting(
        120,
        "seconds before the time limit at which the run is asked to save and stop; what has not ended is killed",
        least(1, MAX_WARNING_SECONDS),
    )
    wckey: str | None = setting(None, "workload characterisation key; none is sent unless named")


CLUSTERS: dict[str, type] = {"local": LocalCluster, "ssh": SshCluster, "slurm": SlurmCluster}
REACH = ("host", "login", *(name for name in fields_of(Reach) if name not in fields_of(Cluster)))
"""Keys of a cluster that say where it is and how it is reached: they can't change once a run is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """What the job runs in."""

    kind: Literal["none", "docker", "podman", "apptainer", "singularity", "pyxis"] = setting(
        "none", "container runtime"
    )
    network: Literal["host", "none"] = setting("host", "the host's network, or none")
    ipc: Literal["host", "private"] = setting("host", "whose shared memory; data loaders and NCCL need much")
    shm: int | None = setting(None, "MiB of a private /dev/shm; null is the runtime's own size")
    cache: str = setting("~/.cache/launcher/images", "folder of images that `image pull` fetched; may be shared")
    pull: bool = setting(
        False,
        "on Slurm with Apptainer, fetch an image that isn't here yet in a job of its own, which the run waits for",
    )
    limits: dict[str, int] = setting({}, "resource limits by prlimit's names, as container.limits.memlock=-1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """What is recorded of GPUs and hosts while a run runs."""

    every: int = setting(
        10, "seconds between samples of GPUs, CPUs and memory; 0 records none", least(0, MAX_SAMPLE_SECONDS)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """What starts again by itself."""

    max: int | None = setting(
        None,
        "times that a hang (watchdog.action=restart), a failed node, a node that does not end or an error of NCCL may "
        "start the run again, from its last checkpoint; not what fails at the same step twice, nor after three "
        "attempts without progress; null: a failed node alone, by Slurm, however often; 0: nothing; a preemption "
        "always does",
        least(0),
    )


class Gpus(int):
    """A number of GPUs, and their type where that matters: 4, or a100:4."""

    kind: str

    def __new__(cls, count: int, kind: str = "") -> Gpus:
        gpus = super().__new__(cls, count)
        gpus.kind = kind
        return gpus

    @classmethod
    def from_setting(cls, value: Any, key: str) -> Gpus:
        """What a person gave. Raises `SettingsError`."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value if isinstance(value, cls) else cls(value)
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*):([1-9][0-9]{0,3})", str(value), re.ASCII)
        if match is None:
            raise SettingsError(f"{key}={show(value)} should be a whole number, or TYPE:NUMBER, as a100:4", key)
        return cls(int(match[2]), match[1])

    def __str__(self) -> str:
        return f"{self.kind}:{int(self)}" if self.kind else str(int(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Where and how a job runs: the keys that the trainer does not read."""

    gpus: Gpus | None = setting(
        None,
        "GPUs per node, free ones of a shared host: 4, or a100:4 for those of a type; auto (null) is all that the host "
        "has, but none with device=cpu",
        least(0),
    )
    visible_gpus: tuple[int, ...] | None = setting(None, "these GPUs of the host, by index")
    wait_gpus: bool = setting(False, "wait for GPUs that others use, instead of refusing the job")
    nodes: int = setting(1, "nodes; more than one needs cluster=slurm", least(1))
    cluster: Any = setting(LocalCluster(), "where: local, ssh, slurm")
    container: Container = setting(Container(), "in what: none, docker, podman, apptainer, pyxis")
    image: str | None = setting(None, "a name of `image list`, a registry's image, a .sif, a .sqsh or a sandbox")
    image_is: str | None = setting(
        None,
        "image.is=ngc-tensorflow1:19.08: the catalogue's image that an image with another name is, or, with "
        "container=none, that this host is a container of; other is none of them",
    )
    python: str | None = setting(
        None,
        "Python of the trainer: a path, venv:PATH of an environment, or uv for that of the uv.lock beside the script "
        "or above it, made first; null is this one, cluster.python on a remote host, python3 in a container",
    )
    script: str | None = setting(None, "recipe=script: the file to run, or image:FILE for one in the image alone")
    arguments: tuple[str, ...] = setting((), "recipe=script: its arguments; on the command line, everything after --")
    sweep: dict[str, str] = setting(
        {}, "recipe=script: sweep.NAME=a,b replaces {NAME} in its arguments, one run for each value"
    )
    include: tuple[str, ...] = setting(
        (),
        "recipe=script: patterns of files that go along though git ignores them, as script.include=[data/*.json]",
    )
    inputs: tuple[str, ...] = setting(
        (), "recipe=script: files and folders to link in a folder of the run's own, as script.inputs=[data]"
    )
    stop_signal: Literal["TERM", "INT", "HUP", "QUIT", "USR2"] | None = setting(
        "TERM",
        "script.stop_signal=TERM: raised in each process of the script when the run is asked to stop; null for none",
    )
    resume_arguments: tuple[str, ...] = setting(
        (), "script.resume_arguments=[--resume,auto]: arguments added to the script's from its second attempt on"
    )
    workdir: str | None = setting(
        None,
        "recipe=script: folder to start in, or run for a folder of the run's own; null is the current folder, but run "
        "over SSH and for several runs, and of image:FILE the file's folder",
    )
    notes: tuple[str, ...] = setting((), "remarks on this job, printed before it starts")
    telemetry: Telemetry = setting(Telemetry(), "what is recorded of GPUs and hosts")
    env: dict[str, str | None] = setting(
        {}, "environment variables of the job, as env.NAME=value; env.NAME passes on this shell's value"
    )
    env_from: Literal["none", "shell"] = setting(
        "none", "shell passes on every variable of this shell but secrets, paths of programs and libraries"
    )
    secrets: dict[str, str | None] = setting(
        {},
        "secrets.NAME=FILE: the file's text reaches the job as NAME; mode 0600. secrets.NAME takes this shell's value",
    )
    mounts: tuple[str, ...] = setting(
        (),
        "SOURCE:TARGET[:ro] folders and files for the container; run:TARGET is a folder of the run's own, which a "
        "resume finds again",
    )
    name: str | None = setting(None, "a name for the run; null is recipe and level")
    run_root: str = setting("~/launcher-runs", "folder that holds the run folders")
    share: Literal["none", "group"] = setting(
        "none", "who may read the runs: you, or the group of run_root, but for code, secrets and checkpoints"
    )
    wait: bool = setting(False, "wait for the end of the job; the default with cluster=local")
    detach: bool = setting(False, "return at once; the default with cluster=ssh and cluster=slurm")
    restart: Restart = setting(Restart(), "what starts again by itself")
    notify: str | None = setting(
        None,
        "program, with its arguments, that gets a JSON on its input once the run or the sweep ends, hangs or is "
        "preempted; of the machine that the run is on",
    )
    tracker: Literal["tensorboard", "mlflow", "wandb"] | None = setting(
        None, "curves, settings and verdict go there while the run lasts, from where it is submitted; see export"
    )
    after: str | None = setting(None, "start after runs or sweeps: RUN once it is done, any:RUN however it ends")


# The recipe's hyper-parameters depend on the recipe and are typed once it is known.
TRAINING_KEYS = tuple(name for name in fields_of(Settings) if name != "train")
ALIASES = {
    "script.include": "include",
    "script.inputs": "inputs",
    "script.stop_signal": "stop_signal",
    "script.resume_arguments": "resume_arguments",
    "image.is": "image_is",
}
"""Other spellings of keys: `script` and `image` themselves are texts."""
# Composed by Hydra: choosing one of these picks a file of conf/.
REQUIRED_GROUPS = ("amp", "loss_scale", "recipe", "cluster", "container", "profile")
UNCHOSEN = ("data", "experiment")
"""Groups without a default file: a word or a file chooses."""
GROUPS = (*REQUIRED_GROUPS, *UNCHOSEN)


@functools.cache
def key_types() -> dict[str, Any]:
    """Every key but `train.*`, dotted, with its type. A key of several kinds of cluster has the same type in each."""
    known: dict[str, Any] = {"loss_scale.preset": str, "cluster.kind": str}
    for key, annotation, _, _ in (*described(Settings), *described(Launch)):
        known[key] = annotation
    del known["cluster"], known["train"]
    for cluster in CLUSTERS.values():
        for key, annotation, _, _ in described(cluster, "cluster."):
            known.setdefault(key, annotation)
    return known


def annotation_of(key: str, train: type | None = None) -> Any:
    """The type of a dotted key, or None if no such key exists. `train` is the recipe's settings class, if known."""
    if key in key_types():
        return key_types()[key]
    if (group := {**fields_of(Settings), **fields_of(Launch)}.get(key)) is not None and is_group(group):
        return group
    parent, _, name = key.rpartition(".")
    holder = key_types().get(parent)
    if get_origin(holder) is dict and name:
        item = get_args(holder)[1]
        return str if is_text(item) else item  # None is env.NAME without a value, and nothing that can be typed
    if train is not None and parent == "train":
        return fields_of(train).get(name)
    return None


def text_key(key: str) -> bool:
    """Whether what is typed after `key=` is text, to be taken as it stands."""
    annotation = annotation_of(key)
    return annotation is not None and is_text(annotation)


def known_keys(train: type | None = None) -> list[str]:
    recipe = [f"train.{name}" for name in fields_of(train)] if train else []
    return sorted({*key_types(), *recipe})


def defaults() -> dict[str, Any]:
    """Every key with the default that the code gives it, as plain values."""
    settings = plain(Settings())
    return {**{name: settings[name] for name in TRAINING_KEYS}, **plain(Launch())}
