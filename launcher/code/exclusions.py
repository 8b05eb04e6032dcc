"""Files that are never copied with code, whatever git says: credentials, virtual environments and caches."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

_CREDENTIALS = (
    *(".netrc", "_netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg"),
    *(".env", ".env.*", "*.env", ".envrc", ".s3cfg", ".boto", ".vault-token", "kaggle.json", "client_secret*.json"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"),
    *(".*_history", ".zhistory", ".history", ".histfile", "fish_history"),
)
_FOLDERS = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".password-store")
_CACHES = ("__pycache__", ".ipynb_checkpoints", "node_modules", ".tox", ".nox", ".eggs")
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""Each marks the top of a virtual environment, venv's or conda's, whatever its folder is called."""
_CACHE_TAG = "CACHEDIR.TAG"
"""Marks a folder as a cache: https://bford.info/cachedir/."""
_LARGEST_KEY = 64 * 2**10
"""Bytes; no private key is larger."""

_RESULTS = (
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.bin", "*.h5", "*.hdf5", "*.keras", "*.pdparams", "*.pdopt"),
    *("*.onnx", "*.gguf", "*.msgpack", "*.pkl", "*.pickle", "*.npz", "*.npy", "*.index", "*.data-?????-of-?????"),
    *("*.log", "*.out", "*.err", "*.tfevents.*", "*.jsonl", "*.prof", "*.nsys-rep", "*.qdrep", "*.ncu-rep"),
    *("*.trace.json*", "core", "core.[0-9]*"),
)
_TEXTS = (
    *(".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf", ".txt", ".md", ".sh", ".ipynb", ".proto", ".j2"),
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".js", ".pyx", ".pyi"),
)
_LARGE_RESULT = 2**20
"""Bytes; smaller files of these names may be settings, a vocabulary or a test's data."""

_name = re.compile("|".join(fnmatch.translate(pattern) for pattern in _CREDENTIALS), re.IGNORECASE)
_KEY_STARTS_WITHIN = 1024
"""Bytes: other text may come first, as the attributes that openssl writes."""
PRIVATE_KEYS = "-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-|openssh-key-v1"
"""How the lines begin with which private keys do."""
_key = re.compile(rf"^[ \t]*({PRIVATE_KEYS})".encode(), re.MULTILINE)


def is_credential(path: str | Path, root: str | Path, *, linked: bool = True) -> bool:
    """Whether a file of the code in `root` is a credential: by its name, by the name of its link's target, by a folder
    that it lies in, or because a private key begins in its first KiB. `root` has its links resolved; `linked` is
    whether there may be others on the way to the file."""
    # Texts rather than paths, which take longer than looking at the files does.
    path, top, target = str(path), f"{root}/", os.path.realpath(path) if linked else str(path)
    named, within = path.removeprefix(top).split("/"), target.removeprefix(top).split("/")
    if _name.fullmatch(named[-1]) or _name.fullmatch(within[-1]) or target.endswith("/.docker/config.json"):
        return True
    if any(part.lower() in _FOLDERS for part in (*named[:-1], *within[:-1])):
        return True
    if path.endswith(".py"):
        return False
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_size <= _LARGEST_KEY and bool(
                _key.search(stream.read(_KEY_STARTS_WITHIN))
            )
    except OSError:  # whoever takes it along will say why it can't be read
        return False


def is_derived(folder: Path) -> bool:
    """Whether a folder is a virtual environment or a cache, which can be made again, or git's own."""
    return folder.name in (".git", *_CACHES) or any((folder / name).exists() for name in (*_ENVIRONMENTS, _CACHE_TAG))


def is_result(name: str, size: int) -> bool:
    """Whether a file of that name and size is what runs leave, as weights and logs, rather than code."""
    return size >= _LARGE_RESULT and any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in _RESULTS)


def is_code(name: str, size: int) -> bool:
    """Whether a file is code or settings by its name; one that Python doesn't read has to be small, too."""
    return name.endswith(".py") or (size < _LARGE_RESULT and name.lower().endswith(_TEXTS))


def is_debris(name: str) -> bool:
    """Whether a file is what Python or an editor left behind."""
    return name.endswith((".pyc", ".swp", "~"))
