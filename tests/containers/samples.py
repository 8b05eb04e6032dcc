"""One container with something of everything, and the runtimes it is rendered for."""

from __future__ import annotations

from launcher.containers.description import Container, Mount, User
from launcher.containers.runtime import Runtime
from launcher.containers.words import EnvArg

RUN = "/data/runs/20260102-030405-calm-fox"
CODE = "/data/runs/.code/c0de"

DOCKER = Runtime(kind="docker", command=("docker",), version=(28, 2, 2))
PODMAN = Runtime(kind="podman", command=("podman",), version=(5, 2, 0))
APPTAINER = Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4, 5))
SINGULARITY_3_8 = Runtime(kind="apptainer", command=("singularity",), product="singularity", version=(3, 8, 7))
PYXIS = Runtime(kind="pyxis", command=("srun", "--ntasks-per-node=1", "--nodes=2", "--kill-on-bad-exit=0"))
RUNTIMES = {
    "docker": DOCKER,
    "podman": PODMAN,
    "apptainer": APPTAINER,
    "singularity-3.8": SINGULARITY_3_8,
    "pyxis": PYXIS,
}
IMAGES = {
    "docker": "nvcr.io/nvidia/pytorch:25.06-py3",
    "podman": "nvcr.io/nvidia/pytorch:25.06-py3",
    "apptainer": "/data/images/sha256-0123.sif",
    "pyxis": "nvcr.io#nvidia/pytorch:25.06-py3",
}

MEI = User(uid=1001, gid=1002, name="mei", groups=(1002, 5000))

FULL = Container(
    image="",
    argv=(
        *("python3", "-m", "torch.distributed.run", "--nnodes=2", EnvArg("SLURM_NODEID", "--node-rank=")),
        *("-m", "amp_launcher.recipes.mnist.train_torch", "amp=o2", "batch=512", f"run={RUN}"),
    ),
    environment={"LAUNCHER_RUN_ID": "20260102-030405-calm-fox", "NOTE": 'it\'s $HOME, `id` "quoted"'},
    passed=("LAUNCHER_ATTEMPT", "MASTER_ADDR"),
    secrets={"API_KEY": "/home/mei/.api key"},
    mounts=(
        Mount(source=CODE, target=CODE, read_only=True),
        Mount(source=RUN, target=RUN),
        Mount(source="/data/image net", target="/data/imagenet", read_only=True),
    ),
    workdir=CODE,
    devices=("2", "3"),
    user=MEI,
    cache="/data/runs/.cache",
    name=EnvArg("SLURM_NODEID", "run-20260102-030405-calm-fox-"),
    limits={"memlock": -1, "stack": 67108864},
)
