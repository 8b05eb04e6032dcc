"""The result of planning as values: `Plan`, and what it has of a container, a script, a replay and a comparison."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from typing import Any

from amp_launcher.settings import PLAN_SCHEMA
from amp_launcher.typed import least, setting
from launcher.code import code_store
from launcher.config import job_environment
from launcher.containers.description import Devices, Mount, User
from launcher.containers.runtime import Runtime
from launcher.runs import run_ids
from launcher.runs.store import ARMS

CHECKPOINTS = "LAUNCHER_CHECKPOINT_DIR"
PLACEHOLDER = "RUN_ID"
"""Stands for the run id until submission."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerPlan:
    """A job's container, resolved: what `launcher.containers.description` needs beyond the command."""

    runtime: Runtime
    image: str
    """As the runtime takes it."""
    asked: str
    """As it was named."""
    identity: str = ""
    """Its digest in the engine's store when the run was planned, or resumed, since a tag may come to mean another
    image; empty for files, and where the engine didn't have it."""
    pull: str = ""
    """The image that a job has to fetch first; empty where it is present."""
    mounts: tuple[Mount, ...] = ()
    devices: Devices = None
    user: User
    network: str = "host"
    ipc: str = "host"
    shm_bytes: int | None = None
    forward_compatibility: bool = False
    """As `containers.description.Container`."""
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptPlan:
    """A user's script, resolved."""

    file: str
    """The path that Python gets: in the snapshot, as `script/train.py`, or in the image."""
    in_image: bool
    """The file is in the container's image only, where it was not checked."""
    root: str = ""
    """The folder that the snapshot's `script` was taken from, where the job finds it under that name; else empty."""
    named: str = ""
    """With `root`, the file as `sys.argv[0]` has it: as typed for the folder that it starts in, else absolute. Of a
    function, the file that defines it."""
    workdir: str
    """Folder that it starts in, absolute; empty for the run's own folder, `RUN/work`, or in a comparison `RUN/work/N`
    for the arm's attempt N, which is one block."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Links in the run's own folder: path from where it starts, as `data` or `../data` -> file or folder, absolute."""
    below: str = ""
    """Where below the run's own folder it starts, so that the links lie in there."""
    arguments: tuple[str, ...] = ()
    """The words after `--`."""
    bare: bool = False
    """Started alone, with no wrapper around it."""
    command: bool = False
    """Started by itself, and not by Python."""
    stop_signal: str | None = None
    """Raised in each of its processes when the run is asked to stop, as TERM; None for none."""
    resume_arguments: tuple[str, ...] = ()
    """Arguments added from the second attempt on."""
    block: int = 0
    """Optimizer steps after which it is ended, as a block of a comparison; 0 for no limit."""

    def folder(self, run: str, block: str = "") -> str:
        """The folder that it starts in, for the run in that folder; `block` is that of a comparison, as `/1`."""
        return self.workdir or f"{run}/work{block}{self.below and f'/{self.below}'}"

    def file_in(self, code: str) -> str:
        """The path of the file for a command that starts in another folder; `code` is the snapshot's folder."""
        return self.file if self.in_image else f"{code}/{self.file}"

    def line(self) -> str:
        """File and arguments, as one would type them."""
        return shlex.join([self.file.removeprefix("script/"), *self.arguments])


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayPlan:
    """The replay of some steps of another run, by `verify`."""

    run: str
    """The run's id."""
    first: int
    """Step of the checkpoint to start from; 0 is the run's beginning."""
    step: int
    """The last step to replay."""


LEAST = 4
"""Fewest executions of a block that leave one to time: its first step, a random one and the run's last are observed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare:
    """How the arms of a comparison are measured."""

    rounds: int = setting(5, "blocks of each arm, taken in turn; an interval needs five", least(1, 1000))
    steps: int = setting(50, "optimizer steps in a block, the first of which warm up", least(LEAST))
    cool_down: int = setting(2, "seconds of rest between two blocks", least(0))
    tolerance: float = setting(
        0.02, "difference of the losses at the same steps, relative, that counts as none", least(0)
    )

    @property
    def total(self) -> int:
        """Steps of each arm."""
        return self.rounds * self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedArm:
    """What somebody published of an arm; None is not given."""

    rate: float | None = None
    """Samples a second."""
    step_seconds: float | None = None
    epoch_seconds: float | None = None
    memory_gib: float | None = None
    loss: float | None = None
    loss_step: int | None = None
    """The optimizer step that the loss is of."""
    accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published table that a comparison repeats."""

    source: str
    hardware: str
    note: str = ""
    epoch_samples: int | None = None
    """What is trained on in one of its epochs, where it gives times of epochs."""
    arms: tuple[PublishedArm, ...] = ()
    """One for each arm, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """What `auto` became; None where the GPU decides, and it is not known yet."""

    dtype: str | None = None
    loss_scale: str | None = None
    """The mode."""
    tf32: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """How Slurm may end the job for another one."""

    mode: str
    """requeue or cancel."""
    grace: int
    """Seconds that it then has."""
    heard: bool = False
    """A job step has to wait for TERM, which Slurm sends to steps alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UvPlan:
    """The environment that uv made for the job."""

    name: str
    """In the run root's folder of environments."""
    project: str
    """Folder in the code snapshot of the project that it is made of."""
    lock: str
    """The lock file where the job was asked for, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything about one job, resolved. Printing it is the dry run; `script.render` turns it into `run.sh`."""

    schema: int = PLAN_SCHEMA
    run_id: str = PLACEHOLDER
    name: str
    run_root: str
    queue: str
    """`direct` or `slurm`."""
    host: str
    recipe: str
    framework: str
    mechanism: str
    """What carries the level out, or empty where the device decides."""
    settings: dict[str, Any]
    """The trainer's settings, every value; the trainer reads them from plan.json."""
    words: tuple[str, ...]
    """What was asked for, as `amp=o2`, for people: the settings have it all."""
    trainer: str
    """Module that is run."""
    python: str
    uv: UvPlan | None = None
    """What that Python belongs to, with `python=uv`."""
    code: str
    """Digest of the code snapshot."""
    shared: int | None = None
    """In a root that a group shares, the uid whose run it is; None where the root is one user's."""
    nodes: int
    gpus: int = field(metadata={"check": least(0)})
    """Per node."""
    gpu_type: str = ""
    """Of the GPUs, as Slurm is asked for it; empty for any."""
    gpu_pool: tuple[str, ...] = ()
    """UUIDs of which as many as `gpus` are taken when the job starts; empty where a scheduler gives them."""
    wait_gpus: bool = False
    processes: int = field(metadata={"check": least(1)})
    """Trainer processes per node."""
    host_env: dict[str, str]
    """What the script itself finds set, on the host."""
    env: dict[str, str]
    """What the job finds set."""
    inherited: tuple[str, ...] = ()
    """Variables that the job gets from the host that submits it, where they are set; their names."""
    passed: tuple[str, ...] = ()
    """Variables that the job gets from the shell where it was asked for; their names."""
    left_behind: tuple[str, ...] = ()
    """Variables of that shell that the job does not get; their names."""
    secrets: dict[str, str]
    setup: tuple[str, ...]
    cluster: dict[str, Any]
    preemption: Preemption | None = None
    """None where nothing shows that it may be preempted."""
    container: ContainerPlan | None = None
    telemetry: int = 0
    """Seconds between samples of GPUs and hosts; 0 is none."""
    script: ScriptPlan | None = None
    """The user's own script, where that is the recipe."""
    replay: ReplayPlan | None = None
    """The steps of another run that it replays, where `verify` made it."""
    after: str | None = None
    """The runs that it comes after, as `after=` names them; a job of its own chain by its run id."""
    up: bool = False
    """It waits for terminals until it is asked to end, as `up` starts it."""
    job: str | None = None
    """Its name in the file of its chain; None for a run that is in none."""
    restarts: int | None = None
    """How often a hang, a failed node or an error of NCCL may start it again; None: a failed node alone, by Slurm."""
    notify: tuple[str, ...] = ()
    """Argument list of what is told of the run's end, its program absolute."""
    tracker: str | None = None
    """Where its curves go from the machine that submits it."""
    swept: tuple[tuple[str, Any], ...] = ()
    advice: tuple[str, ...] = ()
    precision: Decided | None = None
    """What `auto` became; None where nothing of ours is applied to a script."""
    command: tuple[str, ...] = field(default=())
    """The overrides as typed."""
    comparison: Compare | None = None
    """How the arms are measured, where there are any."""
    published: Published | None = None
    """The published table that it repeats."""
    arms: tuple[Plan, ...] = ()
    """Of a comparison: the job in each of its modes, the first the control."""
    arm: str = ""
    """Of an arm: its place in the comparison, as 00."""

    @property
    def run_dir(self) -> str:
        folder = f"{self.run_root}/{self.run_id}"
        return f"{folder}/{ARMS}/{self.arm}" if self.arm else folder

    @property
    def inherits_shell(self) -> bool:
        """As `job_environment.inherits_shell`."""
        return job_environment.inherits_shell(self.recipe, self.cluster["kind"], self.container is not None)

    @property
    def code_dir(self) -> str:
        return f"{self.own_folder(code_store.FOLDER)}/{self.code}"

    def own_folder(self, name: str) -> str:
        """A folder of the run root that is one user's alone."""
        return f"{self.run_root}/{name}" if self.shared is None else f"{self.run_root}/{name}-{self.shared}"

    def bind(self, run_id: str) -> Plan:
        """This plan as the run of that id."""
        return self.at(f"{self.run_root}/{run_id}")

    def at(self, folder: str) -> Plan:
        """This plan as that of the run in that folder: where a plan was read is where its run is, whatever it says."""
        root, _, run_id = folder.rpartition("/")
        before = f"{self.run_root}/{self.run_id}/"
        secrets = {
            name: f"{folder}/{path.removeprefix(before)}" if path.startswith(before) else path
            for name, path in self.secrets.items()
        }
        arms = tuple(arm.at(folder) for arm in self.arms)
        after = self.after and self.after.replace(f"{PLACEHOLDER}-", f"{run_ids.sweep_of(run_id)}-")
        return dataclasses.replace(self, run_root=root, run_id=run_id, secrets=secrets, after=after, arms=arms)
