"""The health of this machine, beyond what planning needs: tools, disks, limits, clock. Changes nothing."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from amp_launcher.world import cgroup_limits
from launcher.containers.programs import output
from launcher.probe.host import existing

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OF_IMAGES = ("LD_LIBRARY_PATH", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "PYTHONPATH")
"""Variables by which an image finds its own CUDA and packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One machine, as this user sees it."""

    time: float
    """Its clock, seconds since 1970."""
    memory_mib: int
    """That a job may use: the limit of the container, if there is one."""
    bash: tuple[int, ...] = ()
    lacking: tuple[str, ...] = ()
    """Programs that runs need and that are missing."""
    free_mib: int
    """Where run folders go."""
    tmp: str = "/tmp"
    tmp_free_mib: int
    tmp_noexec: bool = False
    shm_mib: int
    memlock_kib: int = -1
    """-1 is no limit."""
    infiniband: bool = False
    nvidia_cards: int = 0
    """On the PCI bus, whether there is a driver or not."""
    user_namespaces: str = ""
    """Why ordinary users can make none; empty if they can."""
    setuid_apptainer: bool = False
    lost_variables: tuple[str, ...] = ()
    """In a container reached by a login: variables of the image that its first process has and this login lacks."""
    proxies: tuple[str, ...] = ()
    """Names of the set variables. Their values may contain passwords."""
    no_proxy: tuple[str, ...] = ()


def read(run_root: str) -> Host:
    """This machine. `run_root` need not exist yet."""
    tmp = tempfile.gettempdir()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Host(
        time=time.time(),
        memory_mib=cgroup_limits.memory() // 2**20,
        bash=_bash(),
        lacking=tuple(program for program in ("setsid", "flock") if shutil.which(program) is None),
        free_mib=shutil.disk_usage(existing(Path(run_root).expanduser().absolute())).free // 2**20,
        tmp=tmp,
        tmp_free_mib=shutil.disk_usage(tmp).free // 2**20,
        tmp_noexec=bool(os.statvfs(tmp).f_flag & os.ST_NOEXEC),
        shm_mib=shutil.disk_usage("/dev/shm").total // 2**20 if os.path.isdir("/dev/shm") else 0,
        memlock_kib=-1 if limit == resource.RLIM_INFINITY else limit // 1024,
        infiniband=any(Path("/sys/class/infiniband").glob("*")),
        nvidia_cards=sum(_is_nvidia_gpu(device) for device in Path("/sys/bus/pci/devices").glob("*")),
        user_namespaces=_user_namespaces(),
        setuid_apptainer=_setuid_apptainer(),
        lost_variables=_lost_variables(),
        proxies=tuple(name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.upper())),
        no_proxy=tuple((os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")),
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _bash() -> tuple[int, ...]:
    match = re.match(
        r"(\d+) (\d+)", output(["bash", "-c", "echo ${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"], seconds=20) or ""
    )
    return (int(match[1]), int(match[2])) if match else ()


def _is_nvidia_gpu(device: Path) -> bool:
    # 0x10de is NVIDIA's number; class 03 is a display controller, 3D ones included.
    return _text(f"{device}/vendor") == "0x10de" and _text(f"{device}/class").startswith("0x03")


def _lost_variables() -> tuple[str, ...]:
    if not (os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")):
        return ()
    first = {entry.partition("=")[0] for entry in _text("/proc/1/environ").split("\0")}
    return tuple(variable for variable in _OF_IMAGES if variable in first and variable not in os.environ)


def _user_namespaces() -> str:
    for path, closed in (
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        if _text(path) == closed:
            return f"{path} is {closed}"
    return ""


def _setuid_apptainer() -> bool:
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        return False
    prefix = Path(program).resolve().parent.parent
    starters = [prefix / "libexec" / name / "bin" / "starter-suid" for name in ("apptainer", "singularity")]
    starters += [prefix / "lib" / starter.parent.parent.name / "bin" / "starter-suid" for starter in starters]
    return any(starter.exists() and bool(starter.stat().st_mode & 0o4000) for starter in starters)
