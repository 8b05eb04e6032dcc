"""What each runtime makes of a command line, written from its manual and independently of how ours are written."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from containers.description import Mount
from containers.words import EnvArg, Word


@dataclass(kw_only=True)
class Seen:
    """What a job would find."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    mounts: set[Mount] = field(default_factory=set)
    workdir: str = ""
    image: str = ""
    name: str = ""
    devices: str = ""


def engine(argv: Sequence[str], process: Mapping[str, str]) -> Seen:
    """`docker run` and `podman run`: flags as `--flag=value` or bare, then the image, then the command."""
    assert argv[1] == "run"
    rest, flags = _flags(argv[2:])
    seen = Seen(image=rest[0], argv=rest[1:])
    for flag, value in flags:
        if flag == "--env":
            name, equals, text = value.partition("=")
            if equals or name in process:
                seen.env[name] = text if equals else process[name]
        elif flag == "--mount":
            seen.mounts.add(_fields(value))
        elif flag == "--gpus":
            (row,) = csv.reader([value])
            seen.devices = row[0].removeprefix("device=")
        elif flag == "--device":
            seen.devices = ",".join(filter(None, [seen.devices, value.removeprefix("nvidia.com/gpu=")]))
        elif flag in ("--workdir", "--name"):
            setattr(seen, flag[2:], value)
        elif flag == "--entrypoint":
            assert value == ""
    return seen


def apptainer(argv: Sequence[str], process: Mapping[str, str]) -> Seen:
    """`apptainer exec --cleanenv`: the environment is what carries its prefix."""
    assert argv[1] == "exec" and "--cleanenv" in argv
    rest, flags = _flags(argv[2:])
    prefix = "SINGULARITYENV_" if "singularity" in argv[0] else "APPTAINERENV_"
    env = {name.removeprefix(prefix): value for name, value in process.items() if name.startswith(prefix)}
    seen = Seen(image=rest[0], argv=rest[1:], env=env)
    for flag, value in flags:
        if flag == "--bind":
            assert "," not in value and "\\" not in value
            source, target, *options = value.split(":")
            seen.mounts.add(Mount(source=source, target=target, read_only=options == ["ro"]))
        elif flag == "--mount":
            seen.mounts.add(_fields(value))
        elif flag == "--pwd":
            seen.workdir = value
        elif flag == "--home":
            seen.env["HOME"] = value
    return seen


def pyxis(argv: Sequence[str], process: Mapping[str, str]) -> Seen:
    """`srun --container-image`: only what --container-env names is sure to win over the image's own."""
    rest, flags = _flags(argv[1:])
    assert rest[0] == "/usr/bin/env"
    rest = rest[1:]
    seen = Seen(argv=[])
    for flag, value in flags:
        if flag == "--container-env":
            seen.env |= {name: process[name] for name in value.split(",") if name in process}
        elif flag == "--container-mounts":
            for each in value.split(","):
                source, target, *options = each.split(":")
                seen.mounts.add(Mount(source=source, target=target, read_only=options == ["ro"]))
        elif flag in ("--container-workdir", "--container-image"):
            setattr(seen, flag.removeprefix("--container-"), value)
    while "=" in rest[0]:
        name, _, value = rest.pop(0).partition("=")
        seen.env[name] = value
    seen.argv = rest
    return seen


READERS: dict[str, Callable[[Sequence[str], Mapping[str, str]], Seen]] = {
    "docker": engine,
    "podman": engine,
    "apptainer": apptainer,
    "pyxis": pyxis,
}


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


def _flags(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Leading flags, and what follows them."""
    count = next(index for index, word in enumerate(words) if not word.startswith("-"))
    split = [word.partition("=") for word in words[:count]]
    return list(words[count:]), [(flag, value) for flag, _, value in split]


def _fields(text: str) -> Mount:
    (row,) = csv.reader([text], strict=True)
    values = dict(each.partition("=")[::2] for each in row)
    assert values["type"] == "bind"
    return Mount(source=values["source"], target=values["target"], read_only="readonly" in values)
