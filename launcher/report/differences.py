"""What differs between runs: settings, script, image, code, versions, hardware, results."""

from __future__ import annotations

import filecmp
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from launcher import admit
from launcher.code import code_store
from launcher.report.document import Table, text
from launcher.report.read import Evidence, group_of
from launcher.runs import ownership
from recipes.typed import leaves

MOST_RUNS = 8
"""Columns that can be read side by side."""
_OF_PLAN = ("recipe", "framework", "mechanism", "trainer", "nodes", "gpus", "processes", "env", "queue", "host")
_OF_RESULT = ("world_size", "determinism", "steps", "wall_seconds")
_GROUPS = ("settings", "plan", "image", "code", "data", "versions", "hardware", "result")
"""The groups of values, in the order in which they are shown."""
_MEASURED = frozenset({"data", "versions", "hardware", "result"})
"""The groups that come from a run's result."""
_UNITS = {
    "result: wall_seconds": "s",
    "result: peak_memory_bytes": "bytes",
}
_RATES = tuple(f"result: throughput.{statistic}" for statistic in ("mean", "median", "p10", "p90"))
FILES = 12
"""Files that are named where the code differs."""
DIGEST = 12
"""Letters of a digest or a commit that are shown."""


def differing(evidence: Sequence[Evidence]) -> Table | None:
    """A row for each thing that is not the same in all of these runs; none of one run, and of too many."""
    if not 1 < len(evidence) <= MOST_RUNS:
        return None
    described = [_described(run) for run in evidence]
    rows = []
    for key in _ordered(key for values in described for key in values):
        if len({values.get(key, "-") for values in _measured_of(key, described, evidence)}) > 1:
            unit = f" ({_UNITS[key]})" if key in _UNITS else _rate_unit(key, evidence)
            rows.append((f"{key}{unit}", *(values.get(key, "-") for values in described)))
    if not rows:
        rows.append(("nothing differs", *("",) * len(evidence)))
    return Table(header=("what", *(run.label for run in evidence)), rows=tuple(tuple(map(text, row)) for row in rows))


def _rate_unit(key: str, evidence: Sequence[Evidence]) -> str:
    """The unit of a throughput in parentheses, where all runs have the same; else empty."""
    used = {run.result.throughput.unit or "samples/s" for run in evidence}
    return f" ({used.pop()})" if key in _RATES and len(used) == 1 else ""


def _measured_of(key: str, described: Sequence[dict[str, str]], evidence: Sequence[Evidence]) -> list[dict[str, str]]:
    """The values of the runs that have this group: a run without a result would differ in all of it."""
    if _group(key) not in _MEASURED:
        return list(described)
    return [values for values, run in zip(described, evidence, strict=True) if run.has_result]


def _group(key: str) -> str:
    return key.partition(":")[0]


def _ordered(keys: Iterable[str]) -> list[str]:
    """By group, and keys with a common stem next to each other."""
    unique = list(dict.fromkeys(keys))
    stems = list(dict.fromkeys(key.rpartition(".")[0] for key in unique))
    return sorted(unique, key=lambda key: (_GROUPS.index(_group(key)), stems.index(key.rpartition(".")[0])))


def _described(evidence: Evidence) -> dict[str, str]:
    """Every compared value of a run as text, by name."""
    plan, result, provenance = (evidence.documents[f"{name}.json"] for name in ("plan", "result", "provenance"))
    code, container = group_of(provenance, "code"), group_of(plan, "container")
    digests = group_of(result, "digests")
    values: dict[str, Any] = {
        **{f"settings: {key}": value for key, value in leaves(group_of(plan, "settings")).items()},
        **{f"plan: {key}": value for key, value in leaves({key: plan.get(key) for key in _OF_PLAN}).items()},
        **_script_values(evidence),
        "image: name": container.get("image") or "none",
        "image: digest": digests.get("image"),
        **{f"code: {key}": code.get(key) for key in ("digest", "commit", "dirty")},
        "data: digest": digests.get("data"),
        "versions: interpreter": plan.get("python"),
        **{f"versions: {key}": value for key, value in group_of(result, "versions").items()},
        **{f"hardware: {key}": value for key, value in group_of(result, "hardware").items()},
        **{f"result: {key}": result.get(key) for key in _OF_RESULT},
    }
    for group in ("throughput", "loss", "eval", "loss_scale", "observed"):
        for key, value in leaves(group_of(result, group)).items():
            values[f"result: {group}.{key}"] = value
    values.pop("result: observed.why", None)  # a sentence, which stands with the verdict
    values["result: peak_memory_bytes"] = result.get("peak_memory_bytes")
    return {key: _text(key, value) for key, value in values.items()}


def _script_values(evidence: Evidence) -> dict[str, str | None]:
    """The user's own script and its arguments, as they were typed; empty for a recipe."""
    script = evidence.plan.script
    if script is None:
        return {}
    return {
        "plan: script": script.file and script.file.removeprefix("script/"),
        "plan: script.arguments": shlex.join(script.arguments) or None,
    }


def code_difference(one: Evidence, other: Evidence) -> str:
    """In which files the code of two runs differs, in a sentence; empty where it does not."""
    digests = [run.plan.code for run in (one, other)]
    if not all(digests) or digests[0] == digests[1]:
        return ""
    ours, theirs = _snapshot(one), _snapshot(other)
    if not (ours and theirs):
        return "Their code differs; the snapshots of it are not both here."
    mine, others = _files(ours), _files(theirs)
    changed = mine ^ others
    changed |= {name for name in mine & others if not filecmp.cmp(ours / name, theirs / name, shallow=False)}
    more = f" and {len(changed) - FILES} more" if len(changed) > FILES else ""
    return f"Their code differs in {', '.join(sorted(changed)[:FILES])}{more}."


def _snapshot(evidence: Evidence) -> Path | None:
    """The caller's own snapshot of a run's code, if it is here."""
    root, digest = str(evidence.plan.run_root), str(evidence.plan.code)
    if not admit.is_name(digest) or not ownership.is_mine(evidence.run.folder, evidence.run.root):
        return None  # where another user's plan says is no place to look
    return next((folder / digest for folder in code_store.folders(root) if (folder / digest).is_dir()), None)


def _files(folder: Path) -> set[str]:
    """The snapshot's files, without their list and what Python compiled of them."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in files if path.name != code_store.NAMES and "__pycache__" not in path.parts}


def _text(key: str, value: Any) -> str:
    if isinstance(value, str) and (key.endswith(("digest", "commit"))):
        return value.removeprefix("sha256:")[:DIGEST]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)
