"""What stands in a command line and its environment, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcher.containers.words import EnvArg, Word


def devices(argv: Sequence[str]) -> str:
    """The GPUs that `docker run` or `podman run` is given."""
    by_docker = [word.removeprefix('--gpus="device=').removesuffix('"') for word in argv if word.startswith("--gpus=")]
    return ",".join(by_docker + [word.rpartition("gpu=")[2] for word in argv if word.startswith("--device=")])


def variable(name: str, argv: Sequence[str], process: Mapping[str, str]) -> str | None:
    """The value that a job gets of a variable: as a flag, by Apptainer's prefix, or by the names that pyxis passes."""
    flags = [word.removeprefix(f"--env={name}=") for word in argv if word.startswith(f"--env={name}=")]
    passed = [word.partition("=")[2].split(",") for word in argv if word.startswith("--container-env=")]
    if passed:
        return process.get(name) if name in passed[0] else None
    return flags[-1] if flags else process.get(f"APPTAINERENV_{name}")


def fill(words: Iterable[Word], environment: Mapping[str, str]) -> list[str]:
    """The arguments with their values, as bash reads what `to_bash` writes."""
    filled: list[str] = []
    for word in words:
        if isinstance(word, str):
            filled.append(word)
        elif isinstance(word, EnvArg):
            filled.append(f"{word.before}{environment[word.variable]}{word.after}")
        else:
            filled += [f"{word.before}{item}" for item in environment[word.variable].split(",")]
    return filled
