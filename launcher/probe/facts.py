"""What was found out about a host before planning. Values only: `probe` does the looking, `plan --facts` replays it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from containers.runtime import Runtime
from launcher.code.snapshot import Code
from recipes.script import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as the driver names it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    """0 is not known."""
    capability: str
    """Compute capability, as `8.0`; empty where neither the driver nor the name tells."""
    driver: str
    partitioned: bool = False
    """Cut into instances (MIG), of which a job sees the first: a part of the memory and of the speed."""
    holder: str = ""
    """Who is on it, in words; empty is nobody."""

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """None where it is not known."""
        major, _, minor = self.capability.partition(".")
        return (int(major), int(minor or 0)) if major.isdigit() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A user's script that is here."""

    path: str
    """Absolute, with links resolved."""
    name: str
    """In the snapshot, as `script/train.py`."""
    source: Source = field(default_factory=Source)
    root: str = ""
    """Folder of the code that goes along with it."""
    credentials: tuple[str, ...] = ()
    """Files below it that are left out as credentials."""
    lacking: tuple[str, ...] = ()
    """Modules below it that are imported and do not go along."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One Slurm partition, as `scontrol show partition` and `sinfo` tell it."""

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
    gpu_types: tuple[str, ...] = ()
    """As the site names them in GRES; an empty one for GPUs that it gave no name."""


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
    """Variables that find Slurm's programs and configuration inside a job."""
    nodes_are_here: bool
    """Every node is this very machine, so that its own disks are shared with them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerFacts:
    """What a host has of container runtimes, and of the image that is asked for."""

    runtimes: dict[str, Runtime]
    """Those that are installed, by kind."""
    architecture: str
    """The host's own, as registries write it."""
    image: str
    """As the runtime takes it."""
    image_present: bool
    image_pull: str = ""
    """What `image pull` has to fetch for it to be there, by digest; only where that was asked for."""
    image_architecture: str = ""
    image_cuda: str = ""
    """Version of CUDA that the image says it has; empty where it doesn't."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that say how the runtime's client works here, which a job on a cluster would otherwise not have."""
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One host, and what a request refers to on it."""

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
    packages: dict[str, str] = field(default_factory=dict)
    """Framework package -> version, for those that this Python can import."""
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str = ""
    """Why the GPUs could not be listed, where there is a driver that should have."""
    run_root: str
    """Absolute, with `~` expanded."""
    run_root_problem: str = ""
    run_root_filesystem: str = ""
    """Type of its file system, as `ext4`, where known."""
    folders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Data folders as named in the request -> the names in them."""
    missing: tuple[str, ...] = ()
    """Paths named in the request that are not there."""
    environment: tuple[str, ...] = ()
    """Variables set on this host that go along with a job by themselves; their names."""
    shell: tuple[str, ...] = ()
    """Variables of the shell where the command is typed that could be passed on; their names."""
    bad_secrets: dict[str, str] = field(default_factory=dict)
    """Why a file, or a variable as $NAME, that is named as a secret can be none."""
    open_secrets: tuple[str, ...] = ()
    """Secret files that others may read."""
    profilers: tuple[str, ...] = ()
    """NVIDIA's profilers that are on the PATH."""
    scripts: dict[str, Script] = field(default_factory=dict)
    """The users' scripts as named in the request."""
    code: Code
    slurm: SlurmFacts | None = None
    containers: ContainerFacts | None = None
    ends_at_logout: bool = False
    """The host ends what a user's session leaves running."""

    def absolute(self, path: str) -> str:
        """A path of the request as the job, which starts in another folder, has to have it."""
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return posixpath.normpath(posixpath.join(self.cwd, path))
