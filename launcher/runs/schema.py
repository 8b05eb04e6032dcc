"""The JSON records of a run's folder, as far as code reads them: one type for each file, every field with its type.

Named tuples rather than dataclasses: a listing starts without `dataclasses`, whose import takes longer than reading a
hundred records. Their annotations are types, not texts, each of which `typing` would compile. A field without a value
is None, or empty, whether it was missing, null or of another type.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Identity(NamedTuple):
    """One process, unique across hosts and boots."""

    host: str
    boot: str
    pid: int
    start: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""


class Status(NamedTuple):
    """status.json: the attempt that runs or ran last, written by its script."""

    state: str | None = None
    reason: str | None = None
    started: str | None = None
    ended: str | None = None
    attempt: int | None = None
    exit_code: int | None = None
    before: int | None = None
    """Seconds that earlier attempts ran."""
    process: Identity | None = None


class SearchRecord(NamedTuple):
    """search.json of a sweep that searches: what its runs are ordered by; `launcher.search` reads the rest."""

    metric: str | None = None
    lowest: bool | None = None


class Submission(NamedTuple):
    """submission.json: where the run was submitted, and what finds it there."""

    id: str | None = None
    """The folder's, which keeps it when it is moved."""
    folder: str | None = None
    """Where the folder was then."""
    queue: str | None = None
    host: str | None = None
    submitted: str | None = None
    sweep: str | None = None
    first_attempt: int | None = None
    process: Identity | None = None
    answer: str | None = None
    """Slurm: the file with sbatch's answer."""
    array_index: int | None = None
    script: str | None = None
    log: str | None = None
    slurm_conf: str | None = None


class Stopped(NamedTuple):
    """attempts/N/stopped.json: the attempt stopped on request, and saved its state unless `saved` is false: what a
    user's script saved is not known."""

    step: int | None = None
    why: str | None = None
    saved: bool | None = None


class Cancelled(NamedTuple):
    """cancelled: somebody ended the run."""

    killed: str | None = None
    """Why it had to be killed, where it did not end by itself."""


class Hang(NamedTuple):
    """attempts/N/hang-rankR.json: a rank that took no step for long."""

    rank: int | None = None
    node: str | None = None
    seconds: float | None = None
    where: str | None = None


class Pace(NamedTuple):
    """attempts/N/pace-rankR.json: where a rank spent its time."""

    rank: int | None = None
    node: str | None = None
    waits: float | None = None
    """The share that it was in backward or in a collective."""
    places: Mapping[str, float] = {}
    """The shares of lines of the script."""


class Failed(NamedTuple):
    """attempts/N/failed.json: the first rank that failed."""

    reason: str | None = None
    trace: str | None = None
    rank: int | None = None


class ArmRecord(NamedTuple):
    """plan.json of a comparison: one of its arms."""

    arm: str
    swept: tuple[tuple[str, Any], ...] = ()


class Amp(NamedTuple):
    level: str | None = None
    dtype: str | None = None


class Data(NamedTuple):
    name: str | None = None


class Train(NamedTuple):
    """plan.json: what is read of a recipe's own settings."""

    published: float | None = None


class Settings(NamedTuple):
    amp: Amp = Amp()
    batch: int | None = None
    data: Data = Data()
    train: Train = Train()


class Script(NamedTuple):
    """plan.json: the user's own script."""

    file: str | None = None
    arguments: tuple[str, ...] = ()
    stop_signal: str | None = None


class Cluster(NamedTuple):
    """plan.json: where the run is."""

    stop_before: int | None = None


class Runtime(NamedTuple):
    kind: str | None = None


class Container(NamedTuple):
    image: str | None = None
    identity: str | None = None
    runtime: Runtime = Runtime()


class PlanRecord(NamedTuple):
    """plan.json, as screens show it; `launcher.plan.record` reads all of it."""

    name: str | None = None
    recipe: str | None = None
    framework: str | None = None
    mechanism: str | None = None
    queue: str | None = None
    host: str | None = None
    run_root: str | None = None
    code: str | None = None
    after: str | None = None
    notify: tuple[str, ...] = ()
    tracker: str | None = None
    secrets: Mapping[str, str] = {}
    up: bool | None = None
    job: str | None = None
    words: tuple[str, ...] = ()
    swept: tuple[tuple[str, Any], ...] = ()
    arms: tuple[ArmRecord, ...] = ()
    settings: Settings = Settings()
    script: Script | None = None
    cluster: Cluster = Cluster()
    container: Container | None = None
    processes: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    """On each node."""
    gpu_pool: tuple[str, ...] = ()
    comparison: Mapping[str, Any] = {}
    published: Mapping[str, Any] = {}


class Mode(NamedTuple):
    """What a result's `effective` says of the mode."""

    amp: str | None = None
    dtype: str | None = None
    batch: int | None = None


class Observed(NamedTuple):
    verdict: str | None = None
    why: str | None = None
    dtype: str | None = None
    device: str | None = None
    half_flop_share: float | None = None
    param_dtypes: Mapping[str, int] = {}
    tf32: bool | None = None
    xla_clusters: int | None = None


class Throughput(NamedTuple):
    """In `unit` a second."""

    unit: str | None = None
    mean: float | None = None
    p10: float | None = None
    p90: float | None = None
    data_share: float | None = None
    """Of the time, spent waiting for data."""
    gpu_busy_share: float | None = None
    """Of a step's time, in which a kernel ran on the GPU."""
    matrix_share: float | None = None
    """Of a step's time: what its matrix products would take in float32 at the GPU's peak."""
    mfu: float | None = None
    """Of text: share of the devices' dense peak, from 0 to 1, where that is known."""
    counted: str | None = None
    """Of a script: the optimizer whose steps were counted."""
    why: str | None = None
    """Of a script: why its steps could not be counted."""


class Losses(NamedTuple):
    first: float | None = None
    last: float | None = None


class LossScale(NamedTuple):
    final: float | None = None
    skipped_steps: int | None = None


class Updates(NamedTuple):
    """Optimizer steps through all attempts: `attempted` counts skipped ones too."""

    attempted: int | None = None
    applied: int | None = None


class Profile(NamedTuple):
    tool: str | None = None
    trace: str | None = None
    steps: tuple[int, ...] = ()
    instead_of: tuple[int, ...] = ()
    tensor_core_share: float | None = None


class ComparedArm(NamedTuple):
    arm: str | None = None
    tokens_per_second: float | None = None
    """Of samples of text."""
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    """Of a script whose samples are unknown."""


class Compared(NamedTuple):
    """result.json of a comparison: what is said of its arms."""

    verdict: str | None = None
    arms: tuple[ComparedArm, ...] = ()


class Verified(NamedTuple):
    """result.json of a replay: what it says of the run that it replayed."""

    verdict: str | None = None
    why: str | None = None
    run: str | None = None


class ResultRecord(NamedTuple):
    """result.json, as `amp_launcher.result` writes it, and a comparison's job."""

    status: str | None = None
    reason: str | None = None
    attempts: int | None = None
    framework: str | None = None
    mechanism: str | None = None
    determinism: str | None = None
    nonfinite: tuple[str, ...] = ()
    requested: Mapping[str, Any] = {}
    effective: Mapping[str, Any] = {}
    observed: Observed = Observed()
    throughput: Throughput = Throughput()
    peak_memory_bytes: int | None = None
    startup_memory_bytes: int | None = None
    loss: Losses = Losses()
    eval: Mapping[str, float] = {}
    logged: Mapping[str, float] = {}
    loss_scale: LossScale = LossScale()
    updates: Updates = Updates()
    wall_seconds: float | None = None
    world_size: int | None = None
    profile: Profile = Profile()
    versions: Mapping[str, str] = {}
    digests: Mapping[str, str] = {}
    hardware: Mapping[str, str] = {}
    comparison: Compared | None = None
    verify: Verified = Verified()


class Code(NamedTuple):
    digest: str | None = None
    commit: str | None = None
    dirty: bool | None = None


class Provenance(NamedTuple):
    """provenance.json: where a run comes from."""

    created: str | None = None
    command: tuple[str, ...] = ()
    code: Code = Code()
    script: Code = Code()
    """Of a user's own script, without a digest."""


class MetricsRow(NamedTuple):
    """A row of metrics.jsonl, a step or an `event`, as displays read the last ones; reports read a million."""

    event: str | None = None
    attempt: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    resumed_from: int | None = None
    loss: float | None = None
    lr: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    loss_scale: float | None = None
    memory_bytes: float | None = None
    time: float | None = None
    accuracy: float | None = None
    skipped_total: int | None = None
    nonfinite: tuple[str, ...] = ()
