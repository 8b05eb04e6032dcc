"""Docker and podman, whose command lines differ in user namespace and devices."""

from __future__ import annotations

from launcher.containers.description import Container, Mount
from launcher.containers.devices import visibility
from launcher.containers.runtime import GRACE, Runtime, Wrapped
from launcher.containers.words import EnvArg, Word, prefixed


def wrap(container: Container, runtime: Runtime) -> Wrapped:
    """`docker run` or `podman run` of a settled container.

    Values are in the argument list: in the client's environment the job's PATH or LD_PRELOAD would change the client,
    and Docker cuts lines of an env file at 64 KiB.
    """
    devices = visibility(container.devices, runtime.kind)
    values = {"HOME": container.home, **devices.environment, **container.environment}
    # Without root, podman is two processes, and the outer one ends at once with 0 on TERM, while the job still saves
    # its state. So the container is kept until its exit code was read. Seen with 4.3.
    podman = runtime.kind == "podman"
    words: list[Word] = [*runtime.command, "run", *([] if podman else ["--rm"])]
    words += ["--init", "--pull=never", "--log-driver=none"]
    words += [prefixed("--name=", container.name), f"--network={container.network}"]
    words += ["--interactive"] if container.terminal or container.reads_input else []
    words += ["--tty"] if container.terminal else []
    words += [f"--ipc={container.ipc}", *([f"--shm-size={container.shm_bytes}"] if container.shm_bytes else [])]
    words += [f"--ulimit={name}={value}" for name, value in container.limits.items()]
    words += _user(container, runtime)
    words += devices.flags
    words += [f"--workdir={container.workdir}", *(f"--mount={mount_fields(mount)}" for mount in container.mounts)]
    words += [f"--env={name}={value}" for name, value in values.items()]
    words += [f"--env={name}" for name in (*devices.passed, *container.passed)]
    words += ["--entrypoint=", container.image, *container.argv]
    return Wrapped(
        argv=tuple(words),
        folders=(container.cache, container.home),
        remove=(*runtime.command, "rm", "--force", container.name),
        outcome=(*runtime.command, "wait", container.name) if podman else (),
        stop=(*runtime.command, "stop", EnvArg(GRACE, before="--time="), container.name),
    )


def mount_fields(mount: Mount) -> str:
    """The value of `--mount`: comma-separated fields, quoted as in a CSV file."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return ",".join([*map(_field, fields), *(["readonly"] if mount.read_only else [])])


def _field(text: str) -> str:
    if "," in text or '"' in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def _user(container: Container, runtime: Runtime) -> list[Word]:
    user = container.user
    if runtime.kind == "docker" and runtime.rootless:
        return ["--user=0:0"]
    words: list[Word] = [f"--user={user.uid}:{user.gid}"]
    if runtime.kind == "podman":
        # podman passes the host's proxy variables on by default, the only leak of the host's environment.
        words += ["--http-proxy=false", "--security-opt=label=disable"]
        if user.uid != 0:
            # Otherwise files would belong to a subordinate uid. Other groups don't exist in that namespace.
            return [*words, "--userns=keep-id"]
    return [*words, *(f"--group-add={group}" for group in user.groups)]
