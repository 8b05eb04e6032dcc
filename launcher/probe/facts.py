"""The facts about a host that planning uses. Values only: `probe` collects them, `plan --facts` replays them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Literal

from amp_launcher.around.script_source import Source
from launcher.code.snapshot import Code
from launcher.containers.runtime import Runtime

INDEX = re.compile(r"[0-9]{1,9}")
"""The number of a GPU, and its memory in MiB."""
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables of a shell that say which GPUs are to be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as the driver names it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    """0 is not known."""
    capability: str
    """Compute capability, as `8.0`; empty where neither driver nor name gives it."""
    driver: str
    partitioned: bool = False
    """MIG is on; a job sees the first instance, a part of the memory and speed."""
    holder: str = ""
    """Who uses it, or why nobody can, in words; empty is nobody."""
    fault: str = ""
    """What is wrong with its memory, in words; it is taken where no other is free."""

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """None where it is not known."""
        match = re.fullmatch(r"([0-9]+)\.([0-9]+)", self.capability)
        return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """What a torch was built for."""

    cuda: str
    """As `13.0`; empty for a build without CUDA."""
    architectures: tuple[str, ...] = ()
    """What it has code for, as `sm_80`, or `compute_90` for code that the driver compiles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A user's script on this machine."""

    path: str
    """Absolute, with links resolved."""
    name: str
    """In the snapshot, as `script/train.py`."""
    source: Source = field(default_factory=Source)
    root: str = ""
    """Folder of its code."""
    credentials: tuple[str, ...] = ()
    """Files below `root` that are left out as credentials."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files and folders below `root` that are left out as results, each with its size or the reason."""
    lacking: tuple[str, ...] = ()
    """Modules below `root` that it imports and that are left out."""
    saves: bool = True
    """It names the folder for checkpoints, itself or in modules below `root` that it imports."""
    beside: tuple[str, ...] = ()
    """Other files and folders beside it of which nothing is sent along, as git ignores them; relative to `root`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One Slurm partition, from `sinfo`."""

    name: str
    default: bool
    up: bool
    max_minutes: int | None
    """None is no limit."""
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_mib_per_node: int = 0
    """Of the largest; 0 is not known."""
    cpus_per_gpu: int = 0
    """Each GPU's share of its node's CPUs, the least of all nodes; 0 is not known."""
    gpu_types: tuple[str, ...] = ()
    """As the site names them in GRES; an empty text for GPUs without a name."""
    gpus_of_type: dict[str, int] = field(default_factory=dict)
    """The largest number of each of these types on one node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemptible:
    """A partition, or a QOS, whose jobs are ended for those that go first."""

    by: Literal["partition", "qos"]
    name: str
    mode: str
    """requeue or cancel."""
    grace: int
    """Seconds between the first TERM and the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmFacts:
    """A Slurm cluster as seen from the host that submits."""

    version: str
    cluster: str
    partitions: tuple[Partition, ...]
    max_array_size: int
    """MaxArraySize: the largest index of an array is one less."""
    accounting: bool
    environment: dict[str, str]
    """Variables with which a job finds Slurm's programs and configuration."""
    nodes_are_here: bool
    """Every node is this very machine, so that local disks are shared."""
    preemptible: tuple[Preemptible, ...] = ()
    preempts_by_signal: bool = False
    """A job that is preempted gets the signal that `sbatch --signal` names instead of TERM (send_user_signal)."""
    sbatch_variables: tuple[str, ...] = ()
    """Names of the variables that sbatch itself would take options from, and does not as the launcher calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerFacts:
    """The container runtimes of a host, and its copy of the requested image."""

    runtimes: dict[str, Runtime]
    """Those that are installed, by kind."""
    architecture: str
    """Of the host, as registries write it."""
    image: str
    """Its name for the runtime."""
    image_present: bool
    image_pull: str = ""
    """The reference by digest that `image pull` has to fetch; only if that was requested."""
    image_identity: str = ""
    """As `launcher.containers.find.LocalImage`."""
    image_architecture: str = ""
    image_cuda: str = ""
    """Version of CUDA that the image declares; empty without one."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the runtime's client here, which a job on a cluster would not have otherwise."""
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One host, and the paths and files on it that a request names."""

    host: str
    user: str
    uid: int = 0
    home: str
    cwd: str
    """Folder that relative paths of the request start from."""
    system: str
    """Kernel name: `Linux`, `Darwin`."""
    cpus: int
    python: str
    """The Python that would run the trainer, absolute."""
    python_version: str = ""
    """Empty where that Python could not be run."""
    python_problem: str = ""
    """Why that Python can't be used, where it can't."""
    uv: str = ""
    """With `python=uv`, the name of that Python's environment there."""
    uv_is_made: bool = True
    packages: dict[str, str] = field(default_factory=dict)
    """Framework package -> version, of those that this Python can import."""
    torch_build: TorchBuild | None = None
    """Of this Python's torch, on a host with GPUs; None where it could not be asked."""
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str = ""
    """Why the driver could not list the GPUs."""
    gpu_variables: dict[str, str] = field(default_factory=dict)
    """Those of `GPU_VARIABLES` that are set there."""
    run_root: str
    """Absolute, with `~` expanded."""
    run_root_problem: str = ""
    run_root_filesystem: str = ""
    """Type of its file system, as `ext4`, where known."""
    folders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Data folders as named in the request -> the names in them."""
    file_sizes: dict[str, int | None] = field(default_factory=dict)
    """Data files that a recipe checks, as named in the request -> bytes; None for one that can't be read."""
    programs: dict[str, str] = field(default_factory=dict)
    """Programs as named in the request -> their absolute paths, of those that are there and can be run."""
    missing: tuple[str, ...] = ()
    """Paths named in the request that do not exist."""
    real_paths: dict[str, str] = field(default_factory=dict)
    """Absolute paths of scripts' inputs -> their real paths, where these differ."""
    environment: tuple[str, ...] = ()
    """Names of variables of this host that every job gets."""
    shell: tuple[str, ...] = ()
    """Names of variables of the user's shell that could be passed on."""
    bad_secrets: dict[str, str] = field(default_factory=dict)
    """Why a file, or a variable as $NAME, can't be a secret."""
    open_secrets: tuple[str, ...] = ()
    """Secret files that others may read."""
    profilers: tuple[str, ...] = ()
    """NVIDIA's profilers that are on the PATH."""
    scripts: dict[str, Script] = field(default_factory=dict)
    """The users' scripts as named in the request."""
    uv_project: str = ""
    """With `python=uv`, the folder of the project in the snapshot."""
    uv_lock: str = ""
    """Its lock file on this machine."""
    code: Code
    slurm: SlurmFacts | None = None
    containers: ContainerFacts | None = None
    ends_at_logout: bool = False
    """The host kills the processes of a session at logout."""

    def absolute(self, path: str) -> str:
        """A path of the request as an absolute path: the job starts in another folder."""
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return posixpath.normpath(posixpath.join(self.cwd, path))
