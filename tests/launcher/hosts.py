"""Hosts described by facts alone, for everything that is pure."""

from __future__ import annotations

import dataclasses
import hashlib

from launcher.code.snapshot import Code
from launcher.config.compose import Composer
from launcher.config.parse import parse
from launcher.config.spec import JobSpec, make
from launcher.config.sweep import cells
from launcher.probe.facts import Facts, Gpu

EMPTY = hashlib.sha256().hexdigest()
"""The digest of a snapshot without files."""
LAPTOP = Facts(
    host="box",
    user="mei",
    home="/home/mei",
    cwd="/home/mei/project",
    system="Linux",
    cpus=8,
    python="/opt/venv/bin/python",
    python_version="3.11.7",
    packages={"torch": "2.13.0"},
    run_root="/home/mei/launcher-runs",
    code=Code(digest=EMPTY, root="/opt/launcher"),
)


def gpu(index: int, capability: str, name: str = "Tesla V100-SXM2-32GB") -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-0000-{index}", name=name, memory_mib=32480, capability=capability, driver="560.35.03"
    )


TWO_V100 = dataclasses.replace(LAPTOP, gpus=(gpu(0, "7.0"), gpu(1, "7.0")))
TWO_A100 = dataclasses.replace(LAPTOP, gpus=(gpu(0, "8.0", "A100"), gpu(1, "8.0", "A100")))
KEPLER = dataclasses.replace(LAPTOP, gpus=(gpu(0, "3.5", "Tesla K40m"),))


def spec_of(*words: str, composer: Composer | None = None) -> JobSpec:
    """The one job that the words spell."""
    (cell,) = cells(composer or Composer(), [parse(word) for word in words])
    return make(cell)
