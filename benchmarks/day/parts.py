"""The parts of the day, in order, each in processes of its own and with plain Python beside it where it trains."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.day import machine
from benchmarks.day.checks import Check, Day, LeftOut, Part
from benchmarks.day.ranks import ranks
from benchmarks.day.scripts import canaries, overflow

GPT = (("o0", False), ("o1", False), ("o2", False), ("o2", True), ("fp8", True))
"""Levels of gpt, and whether they are compiled; the first is what the losses of the others are compared with."""
GPT_THOROUGH = (("fp8", False), ("o0", True), ("o1", True))
PROCESSES = 3
"""Of the thorough day's rows."""
THOROUGH = 1800.0
"""Seconds for one of them."""
IMAGES = "{{.Repository}}:{{.Tag}}"
"""How docker and podman list an image."""
CHECKS = 2.0
"""Minutes for its checks alone, by their estimates; they end sooner."""
AGREE = 0.05
"""Relative gap of the last losses of a level and of o0: on an H200 up to 0.02 after 60 steps."""


def parts() -> list[Part]:
    """Ten minutes on one GPU, by their estimates."""
    return [
        Part(letter="a", about="the machine", seconds=10, run=_machine),
        Part(letter="b", about="doctor, visible devices, two runs at once", seconds=60, run=_places),
        Part(letter="c", about="scripts, with plain Python beside them", seconds=90, run=canaries),
        Part(letter="d", about="a fused optimizer in float16, overflow first", seconds=30, run=overflow),
        Part(letter="e", about="kernels", seconds=90, run=_kernels),
        Part(letter="f", about="gpt at several levels, eager and compiled", seconds=140, run=_gpt),
        Part(letter="g", about="stop, resume, and a rank that is killed", seconds=120, run=ranks),
        Part(letter="h", about="a container", seconds=60, run=_container),
    ]


def _machine(day: Day) -> Iterator[Check]:
    build = machine.torch_build()
    (day.folder / "torch.json").write_text(json.dumps(build, indent=1) + "\n")
    yield Check(name="torch is built for these GPUs", passed=_is_built(build) if build["gpus"] else None, facts=build)
    if shutil.which("nvidia-smi") is None:
        raise LeftOut("no nvidia-smi here")
    try:
        (day.folder / "nvidia-smi.xml").write_text(machine.fixture(machine.asked("-q", "-x")))
        (day.folder / "topology.txt").write_text(machine.topology(machine.asked("topo", "-m")))
    except (OSError, subprocess.SubprocessError, ET.ParseError) as error:
        yield Check(name="nvidia-smi answers", passed=False, facts={"why": str(error)[:300]})
        return
    yield Check(name="nvidia-smi answers", passed=True)


def _is_built(build: dict[str, Any]) -> bool:
    """A GPU runs code of its own major generation, up to its minor one, and any PTX of an earlier one."""
    made = [(name.partition("_")[0], int("".join(filter(str.isdigit, name)))) for name in build["architectures"]]
    return all(
        any((kind == "sm" and code // 10 == major and code % 10 <= minor) or kind == "compute" for kind, code in made)
        for major, minor in build["capabilities"]
    )


def _places(day: Day) -> Iterator[Check]:
    done = day.launcher("doctor")
    yield Check(name="doctor", passed=done.returncode == 0, facts={"exit_code": done.returncode} | day.why(done))
    if day.device == "cuda":
        done = day.launcher("plan", "amp=o1", CUDA_VISIBLE_DEVICES="0")
        yield Check(name="a plan keeps to the visible GPU", passed=done.returncode == 0, facts=day.why(done))
    size = ("recipe=mnist", "amp=o1", "data=synthetic", "steps=20", *day.one_gpu())

    def race(name: str) -> subprocess.CompletedProcess[str]:
        return day.launcher(*size, f"name={name}")

    with ThreadPoolExecutor(2) as pool:
        done_both = list(pool.map(race, ("race-1", "race-2")))
    codes = [each.returncode for each in done_both]
    gpus = [day.result(name).get("hardware", {}).get("uuid") for name in ("race-1", "race-2")]
    apart = None in gpus or gpus[0] != gpus[1]
    right = codes == [0, 0] and apart if day.device == "cpu" else 0 in codes and set(codes) <= {0, 2, 3} and apart
    yield Check(name="two runs share no GPU", passed=right, facts={"exit_codes": codes})


def _kernels(day: Day) -> Iterator[Check]:
    """With `--thorough` all rows, in three processes: what differs between them is no property of the GPU."""
    size = ("--tiny", "--device", "cpu") if day.tiny else () if day.thorough else ("--minutes", f"{CHECKS:g}")
    only = () if day.thorough else ("--only", "check")
    names = [f"gpu-{number}.json" for number in range(1, 1 + PROCESSES)] if day.thorough else ["gpu.json"]
    for out in (day.folder / name for name in names):
        done = day.python("-m", "benchmarks.gpu", *only, *size, "--out", str(out), seconds=THOROUGH)
        yield Check(
            name="kernels and scalers",
            passed=done.returncode == 0,
            facts={"exit_code": done.returncode} | day.why(done),
        )
    if day.thorough:
        (day.folder / "spread.json").write_text(json.dumps(spread(day.folder), indent=1) + "\n")


def spread(folder: Path) -> list[dict[str, Any]]:
    """The values of each row in all processes, and the largest over the smallest."""
    rows: dict[tuple[str, str], list[float]] = {}
    for path in sorted(folder.glob("gpu-*.json")):
        for row in json.loads(path.read_text())["rows"]:
            if row["value"]:
                rows.setdefault((row["part"], row["name"]), []).append(row["value"])
    return [
        {"part": part, "name": name, "values": values, "spread": max(values) / min(values)}
        for (part, name), values in rows.items()
    ]


def _gpt(day: Day) -> Iterator[Check]:
    size = ("train.layers=1", "train.width=32", "train.heads=2", "train.context=32", "train.vocab_size=256")
    size = (*size, "train.held_out=4", "batch=4", "steps=12") if day.tiny else ("steps=60",)
    control: float | None = None
    for level, compiled in (*GPT, *(GPT_THOROUGH if day.thorough else ())):
        words = (f"amp={level}", f"compile={str(compiled).lower()}")
        if day.tiny and (compiled or level == "fp8"):
            yield Check(name=" ".join(words), passed=None, facts={"why": "not in a rehearsal"})
            continue
        name = "gpt-" + "-".join(word.partition("=")[2] for word in words)
        done = day.launcher("recipe=gpt", *words, *size, *day.one_gpu(), "profile=framework", f"name={name}")
        result = day.result(name)
        last = (result.get("loss") or {}).get("last")
        control = last if control is None else control
        agrees = last is not None and control is not None and abs(last / control - 1) < AGREE
        facts = {
            "exit_code": done.returncode,
            "loss": last,
            "throughput": (result.get("throughput") or {}).get("median"),
            "gpu_busy_share": (result.get("throughput") or {}).get("gpu_busy_share"),
            "tensor_core_share": (result.get("profile") or {}).get("tensor_core_share"),
        }
        facts |= day.seen(name) | day.why(done)
        proved = done.returncode == 0 and facts["verdict"] == "proved"
        yield Check(name=" ".join(words), passed=proved and agrees, facts=facts)
        for trace in (day.home / "runs").glob("*/profile/*.pt.trace.json"):
            (day.folder / f"{name}.{trace.name}").write_text(machine.trace(trace.read_text()))
            trace.unlink()


def _container(day: Day) -> Iterator[Check]:
    engine = next((name for name in ("docker", "podman", "apptainer") if shutil.which(name)), None)
    if engine is None or day.device != "cuda":
        raise LeftOut("no container engine here" if engine is None else "a rehearsal has no image")
    image = newest_ngc(_listed(engine))
    if not image:
        raise LeftOut("no NGC image of PyTorch is here; this pulls none")
    # The image switches TF32 on by a variable, which tf32=false has to win against.
    for words in (("amp=o2",), ("amp=o0", "tf32=false")):
        name = f"ngc-{words[0][-2:]}"
        size = ("recipe=mnist", "data=synthetic", "steps=40", *day.one_gpu())
        done = day.launcher(*words, *size, f"container={engine}", f"image={image}", f"name={name}")
        facts = {"image": image.rpartition("/")[2]} | day.seen(name) | day.why(done)
        right = done.returncode == 0 and facts["verdict"] == "proved"
        yield Check(name=f"{' '.join(words)} in an NGC image by {engine}", passed=right, facts=facts)


def _listed(engine: str) -> str:
    if engine == "apptainer":
        return ""  # its images are files, wherever they lie
    return subprocess.run([engine, "images", "--format", IMAGES], capture_output=True, text=True).stdout


def newest_ngc(listed: str) -> str:
    """The image of PyTorch of NVIDIA's newest release among those that an engine lists; empty without one."""
    found = [line for line in listed.splitlines() if re.fullmatch(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", line)]
    return max(found, default="")
