"""What jobs need to know about the host that they go to."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.code import job_files
from launcher.config.schema import OWN_FOLDER, SlurmCluster
from launcher.config.spec import JobSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """What has to be found out about a host."""

    slurm: bool
    container: str
    """Kind of container runtime, as requested."""
    image: str | None
    cache: str
    """Folder of fetched images."""
    pull: bool
    """Whether an image that is missing is to be fetched."""
    python: str | None
    uv: str
    """Digest of the project whose environment is that Python's, with `python=uv`; else empty."""
    run_root: str
    shared: bool
    """Whether a group is to read the runs."""
    folders: tuple[str, ...]
    """Of data."""
    data_files: tuple[str, ...]
    """Files in these folders that recipes check."""
    workdirs: tuple[str, ...]
    inputs: tuple[str, ...]
    """`script.inputs` of scripts."""
    mounts: tuple[str, ...]
    """Their sources."""
    programs: tuple[str, ...]
    """What `notify` starts."""


def data_files(spec: JobSpec) -> tuple[str, ...]:
    """Paths, as named in the request, of the data files that the recipe checks."""
    layout = spec.recipe.data.get(spec.training.data.name)
    folder = spec.training.data.dir
    if spec.recipe.check_files is None or layout is None or folder is None:
        return ()
    return tuple(posixpath.join(folder, name) for names in layout.files for name in names)


def questions(specs: Sequence[JobSpec], uv: str = "") -> Questions:
    """The questions of jobs that go to one host; with `python=uv` also the digest of their project."""
    first = specs[0].launch
    with_script = [spec for spec in specs if job_files.scripts([spec])]
    return Questions(
        slurm=isinstance(first.cluster, SlurmCluster),
        container=first.container.kind,
        image=first.image,
        cache=first.container.cache,
        pull=first.container.pull,
        python=first.python,
        uv=uv,
        run_root=first.run_root,
        shared=first.share == "group",
        folders=tuple(sorted({spec.training.data.dir for spec in specs if spec.training.data.dir})),
        data_files=tuple(sorted({path for spec in specs for path in data_files(spec)})),
        workdirs=tuple(sorted({folder for spec in with_script if (folder := spec.launch.workdir) is not None})),
        inputs=tuple(sorted({path for spec in with_script for path in spec.launch.inputs})),
        mounts=tuple(sorted({mount.split(":")[0] for spec in specs for mount in spec.launch.mounts} - {OWN_FOLDER})),
        programs=tuple(sorted({shlex.split(spec.launch.notify)[0] for spec in specs if spec.launch.notify})),
    )
