"""A Docker engine of our own: containerd and dockerd with their own folders and sockets, and no network of theirs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed import user
from tests.testbed.bed import SYSTEM_PATH, Bed, TestbedError, output_of, remove_folder, run, write
from tests.testbed.processes import Server, ensure, stop

CONTAINERD = "containerd"
ENGINE = "dockerd"
SERVERS = (CONTAINERD, ENGINE)


def host(bed: Bed) -> str:
    """The value for DOCKER_HOST."""
    return f"unix://{bed.folder}/docker/docker.sock"


def environment(bed: Bed) -> dict[str, str]:
    return {"DOCKER_HOST": host(bed)}


def up(bed: Bed) -> str:
    started = [server.name for server in (containerd(bed), engine(bed)) if ensure(bed, server)]
    return f"started {', '.join(started)}" if started else "running"


def down(bed: Bed) -> None:
    """dockerd ends its containers when it is told to end."""
    stop(bed, ENGINE, patience=30)
    stop(bed, CONTAINERD)
    # dockerd leaves mounts behind, and a folder with mounts in it can't be removed.
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(f"{bed.folder}/docker/")]):
        output_of(["umount", point])


def containerd(bed: Bed) -> Server:
    folder = bed.part("docker")
    # The part that serves Kubernetes is not needed, and wants cgroups and a network.
    text = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
    write(folder / "containerd.toml", text)
    argv = ["containerd", "--config", f"{folder}/containerd.toml", "--root", f"{folder}/containerd"]
    argv += ["--state", f"{folder}/containerd-state", "--address", f"{folder}/containerd.sock", "--log-level", "warn"]
    question = ["ctr", "--address", f"{folder}/containerd.sock", "version"]
    return Server(name=CONTAINERD, argv=tuple(argv), configuration=text, ready=lambda: output_of(question) is not None)


def engine(bed: Bed) -> Server:
    folder = bed.part("docker")
    write(folder / "daemon.json", "{}\n")  # in place of the machine's own /etc/docker/daemon.json
    argv = ["dockerd", "--config-file", f"{folder}/daemon.json", "--host", host(bed), "--group", user.NAME]
    argv += ["--containerd", f"{folder}/containerd.sock", "--pidfile", f"{folder}/dockerd.pid"]
    argv += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--storage-driver", _storage(bed)]
    # Containers use the host's network or none, so that nothing here touches the machine's firewall or routes.
    argv += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    argv += ["--userland-proxy=false", "--log-level=warn", "--exec-opt=native.cgroupdriver=cgroupfs"]
    question = ["docker", "version", "--format", "{{.Server.Version}}"]
    return Server(
        name=ENGINE,
        argv=tuple(argv),
        ready=lambda: output_of(question, environment(bed)) is not None,
        leftovers=(folder / "dockerd.pid",),  # one whose process is a zombie counts as running
        patience=30,
    )


def _storage(bed: Bed) -> str:
    """overlay2 where this folder's file system can carry it, else vfs, which copies an image for every container.
    Asked once: images made under one are not seen under the other."""
    answer = bed.part("docker") / "storage-driver"
    if not answer.exists():
        answer.write_text("overlay2" if _can_overlay(bed) else "vfs")
    return answer.read_text()


def _can_overlay(bed: Bed) -> bool:
    scratch = bed.part("docker") / "overlay-probe"
    for name in ("lower", "upper", "work", "merged"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
    mounted = output_of(["mount", "-t", "overlay", "overlay", "-o", layers, f"{scratch}/merged"]) is not None
    if mounted:
        run(["umount", f"{scratch}/merged"], log=bed.log("docker"))
    remove_folder(scratch)
    return mounted


def has_image(bed: Bed, name: str, label: str) -> bool:
    """Whether the engine has this image, made from what `label` stands for."""
    argv = ["docker", "image", "inspect", "--format", '{{index .Config.Labels "testbed"}}', name]
    return (output_of(argv, environment(bed)) or "").strip() == label


def import_image(bed: Bed, root: Path, name: str, label: str) -> None:
    """An image of one layer, from a root file system."""
    import_root(bed, root, ["docker", "import"], name, label, environment(bed))


def import_root(
    bed: Bed, root: Path, argv: Sequence[str], name: str, label: str, env: Mapping[str, str] | None = None
) -> None:
    """Pack a root file system as root, since not all of it is everyone's to read, for an engine's `import`."""
    settings = (f"LABEL testbed={label}", f"ENV PATH={SYSTEM_PATH}", "ENV LANG=C.UTF-8", 'CMD ["bash"]')
    changes = [word for setting in settings for word in ("--change", setting)]
    packing = ["tar", "--numeric-owner", "--directory", str(root), "--create", "."]
    with subprocess.Popen(packing, stdout=subprocess.PIPE) as tar:
        assert tar.stdout
        run([*argv, *changes, "-", name], log=bed.log("images"), env=env, stdin=tar.stdout)
    if tar.returncode:
        raise TestbedError(f"tar of {root} ended with {tar.returncode}")
