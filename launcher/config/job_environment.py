"""The environment of a job.

A user's script on this machine inherits that of the shell where the command is typed, but for the variables of another
job; `shell_record` keeps no value of it. For every other job there is one rule: a short list of variables is passed on
from the host that submits (`STANDARD`). PATH, library paths and the like are those of the place where the job runs:
here of this shell, with its active environment and modules. All others of the shell where a command is typed are
dropped, unless `env.NAME` or `env_from=shell` names them. Values that are passed on are in a file of mode 0600 in the
run folder; plan, script and scheduler have the names alone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from amp_launcher.around import plain_start
from launcher.containers.variables import DEVICES, JOB_PREFIXES, LAUNCHER_PREFIXES, RENDEZVOUS, RUNTIME_PREFIXES, SHELL
from launcher.containers.words import to_bash
from launcher.errors import UsageError
from launcher.runs import store

FILE = ".environment"
"""Of a run folder: lines of bash that export the variables that are passed on."""
MAX_SECRET = 100 * 2**10
"""Bytes; Linux starts no process with a variable above 128 KiB."""

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
ANYWHERE = ("TZ", *_PROXIES, *(name.upper() for name in _PROXIES))
"""Mean the same inside a container: they name no paths."""
STANDARD = (
    *ANYWHERE,
    *("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE"),
    *("LC_MESSAGES", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "KERAS_HOME", "TFDS_DATA_DIR"),
    *("TFHUB_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "PIP_CACHE_DIR"),
)
_PLACE = (
    *("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    *("KRB5CCNAME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_EXE", "CONDA_PYTHON_EXE", "CONDA_SHLVL"),
    *("MAMBA_EXE", "MAMBA_ROOT_PREFIX", "MODULEPATH", "MODULESHOME", "MODULES_CMD", "LOADEDMODULES", "_LMFILES_"),
    *("BASH_ENV", "BASH_FUNC_module%%", "BASH_FUNC_ml%%", "BASH_FUNC__module_raw%%"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"),
    *("APPTAINER_USERNS", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR"),
)
_PLACE_PREFIXES = ("LMOD_", "__LMOD_", "__MODULES_")
# Of the terminal and the session: a job does not need them, so no message says that they were dropped.
_SESSION = (
    *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "LS_COLORS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
    *("WINDOWID", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "EDITOR", "VISUAL", "PAGER", "LESS", "LESSOPEN", "LESSCLOSE"),
    *("MAIL", "HOSTNAME", "HOSTTYPE", "OSTYPE", "MACHTYPE", "LINES", "COLUMNS", "STY", "TMUX", "TMUX_PANE", "MANPATH"),
    *("INVOCATION_ID", "JOURNAL_STREAM", "DESKTOP_SESSION", "INFOPATH", "DEBIAN_FRONTEND", "VIRTUAL_ENV_PROMPT"),
)
_SESSION_PREFIXES = (
    *("TERM_", "SSH_", "XDG_", "DBUS_", "GPG_", "HIST", "GNOME_", "KDE_", "GTK_", "QT_", "VSCODE_", "SYSTEMD_"),
)
# Variables of a surrounding job or launcher would give this job wrong sizes or another job's rendezvous.
_ANOTHER_JOBS_PREFIXES = (*JOB_PREFIXES, "OMPI_", "TORCHELASTIC_")
_RANKS = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE")  # torchrun's
_OF_JOBS_PREFIXES = ("LAUNCHER_", "SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PYXIS_", "OMPI_", "TORCHELASTIC_")
# What bash on the way to a script obeys, or takes for its own.
_OF_BASH = (*SHELL, "BASHOPTS", "POSIXLY_CORRECT", "CDPATH", "GLOBIGNORE", "FUNCNEST", "TMOUT", "TIMEFORMAT")
# What a notebook's kernel sets for itself: its colours would be in logs, and other Pythons may not have its backend.
_OF_KERNEL = {
    **dict.fromkeys(("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR"), "1"),
    **dict.fromkeys(("PAGER", "GIT_PAGER"), "cat"),
    "PYDEVD_USE_FRAME_EVAL": "NO",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
_KERNEL = "JPY_PARENT_PID"
"""The variable by which a process knows that it is a kernel's."""
_DECIDED = (
    *(*DEVICES, "PYTHONPATH", "PYTHONNOUSERSITE", "ENV", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("IFS", "OPTIND", "PPID", "UID", "EUID", "SHELLOPTS", "RANDOM", "SECONDS"),
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PAT|API_?KEY|(?:ACCESS|PRIVATE|AUTH|SECRET)_KEY(?:_ID)?)",
    re.IGNORECASE,
)


def is_reserved(name: str) -> bool:
    """Whether script and runtimes set the variable: another value would change which devices or run a job sees."""
    return name in (*DEVICES, "PYTHONPATH", "TF_CONFIG") or name.startswith(LAUNCHER_PREFIXES)


def looks_secret(name: str) -> bool:
    """Whether a variable is a secret, by its name."""
    return bool(_SECRET.fullmatch(name))


def of_place(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the process that runs a job on this host is started with."""
    return {
        name: value
        for name, value in environment.items()
        if name in STANDARD or name in _PLACE or name.startswith(_PLACE_PREFIXES)
    }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a user's script on this machine inherits of a shell: all but those of another job, and those
    that a notebook's kernel has set."""
    of_kernel = {(_KERNEL, environment[_KERNEL]), *_OF_KERNEL.items()} if _KERNEL in environment else set()
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF"
        or not (name in (*RENDEZVOUS, *_RANKS) or name.startswith(_OF_JOBS_PREFIXES) or (name, value) in of_kernel)
    }


def for_script(environment: Mapping[str, str], *, bare: bool) -> dict[str, str]:
    """What run.sh is started with, so that its script finds what is `inherited`. What bash on the way would obey or
    change is kept under another name, unless nothing would give it back, as around a `bare` script."""
    own = inherited(environment)
    if bare:
        return own
    functions = [name for name in own if name.startswith("BASH_FUNC_") and name not in _PLACE]
    obeyed = {name: own.pop(name) for name in (*functions, *_OF_BASH) if name in own}
    given_back = obeyed | {name: own[name] for name in plain_start.REPLACED if name in own}
    own |= search_path(own, os.getcwd())
    kept = {f"{plain_start.OF_SHELL}{name}": value for name, value in given_back.items()}
    return {**own, **kept, plain_start.UMASK: f"{_umask():o}"}


def search_path(
    environment: Mapping[str, str], folder: str, *, queued: bool = False, contained: bool = False
) -> dict[str, str]:
    """The PYTHONPATH that a job takes from the process that starts it in that folder, absolute, and with which its
    Python is asked beforehand. None in a container, whose image has its own packages, nor in a queue, whose nodes get
    no variable of the shell."""
    entries = None if queued or contained else plain_start.absolute(environment.get("PYTHONPATH"), folder)
    return {"PYTHONPATH": entries} if entries else {}


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)


def standard(names: Iterable[str]) -> tuple[str, ...]:
    """The names among a host's variables that are passed on by default."""
    return tuple(sorted(set(names) & set(STANDARD)))


def of_shell(names: Iterable[str]) -> tuple[str, ...]:
    """The variables of a shell that may be passed on: those that belong neither to the place nor to another job."""
    return tuple(
        sorted(
            name
            for name in names
            if NAME.fullmatch(name)
            and name not in (*_PLACE, *RENDEZVOUS)
            and not name.startswith((*_PLACE_PREFIXES, *_ANOTHER_JOBS_PREFIXES))
        )
    )


def problem(secret: bytes) -> str:
    """Why a text cannot be a secret; empty if it can."""
    if not secret.strip(b"\n"):
        return "is empty"
    if b"\0" in secret:
        return "contains a NUL byte, which no variable can"
    if len(secret) > MAX_SECRET:
        return f"is larger than {MAX_SECRET // 2**10} KiB, and would be a variable"
    return ""


def file_problem(path: Path) -> str:
    """Why an existing file cannot hold a secret; empty if it can."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "is not a file"
        with open(path, "rb") as stream:
            return problem(stream.read(MAX_SECRET + 1))
    except OSError as error:
        return error.strerror or str(error)


def write_variables(folder: Path, inherited: Sequence[str], passed: Sequence[str], given: Mapping[str, str]) -> None:
    """Write the variables that are passed on: `inherited` of this process, `passed` of `given`.

    Raises `UsageError`."""
    values = {name: os.environ[name] for name in inherited if name in os.environ}
    for name in passed:
        if name not in given:
            raise UsageError(f"env.{name} has no value, and {name} is not set in this shell (any more)")
        values[name] = given[name]
    text = "".join(f"export {name}={to_bash(value)}\n" for name, value in values.items())
    store.write_bytes(folder / FILE, os.fsencode(text))


def write_secrets(files: Mapping[Path, bytes]) -> None:
    """Write secrets that are kept for a run alone. Raises `UsageError` for a text that can be none."""
    for path, content in files.items():
        if why := problem(content):
            raise UsageError(f"secrets.{path.name}: its value {why}")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        store.write_bytes(path, content)


def typed_secrets(words: Iterable[str]) -> dict[str, bytes]:
    """The secrets that words such as `secrets.NAME=FILE` and `secrets.NAME` name. Raises `UsageError`."""
    secrets = {}
    for word in words:
        key, equals, file = word.partition("=")
        name = key.removeprefix("secrets.")
        if not NAME.fullmatch(name):
            raise UsageError(f"{key}: {name!r} is not a name for an environment variable (command line)")
        try:
            secrets[name] = Path(file).expanduser().read_bytes() if equals else os.environb[name.encode()]
        except (OSError, RuntimeError) as error:
            raise UsageError(f"{word}: {getattr(error, 'strerror', None) or error} (command line)") from None
        except KeyError:
            raise UsageError(f"{word}: {name} is not set in this shell (command line)") from None
        if why := problem(secrets[name]):
            raise UsageError(f"{word} {why} (command line)")
    return secrets


def own_secrets(secrets: Mapping[str, str], run_dir: str) -> dict[str, Path]:
    """Those secrets of a plan whose files are kept in the run's own folder."""
    own = Path(run_dir, store.SECRETS)
    return {name: Path(path) for name, path in secrets.items() if Path(path).parent == own}


def inherits_shell(recipe: str, cluster: str, contained: bool) -> bool:
    """Whether a job runs with the variables of the shell where it is started, as a script on this machine does."""
    return recipe == "script" and cluster == "local" and not contained


def passed_on(env: Mapping[str, str | None], shell: Collection[str], all_of_shell: bool) -> tuple[str, ...]:
    """Names of the variables that a request passes on from the shell where it was typed."""
    named = {name for name, value in env.items() if value is None}
    if all_of_shell:
        named |= {name for name in left_behind(shell, env) if not looks_secret(name) and not is_decided(name)}
    return tuple(sorted(named))


LEFT_BEHIND = "env.NAME takes one along, env_from=shell all but secrets; `plan --all` names them"


def left_behind(shell: Collection[str], passed: Collection[str]) -> tuple[str, ...]:
    """The variables of a shell that a job may need and does not get."""
    return tuple(name for name in shell if name not in (*STANDARD, *passed) and not is_of_session(name))


def is_of_session(name: str) -> bool:
    """Whether a variable belongs to a terminal's session, and no job needs it."""
    return name not in STANDARD and (name in _SESSION or name.startswith(_SESSION_PREFIXES))


def is_decided(name: str) -> bool:
    """Whether launcher, trainer or a container runtime decides on the variable: it is passed on by its own name only,
    where it is not refused."""
    return name in _DECIDED or name.startswith(RUNTIME_PREFIXES) or "AUTO_MIXED_PRECISION" in name
