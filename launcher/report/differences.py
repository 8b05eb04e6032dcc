"""What differs between runs beside their results: settings, script, image, code, versions, hardware."""

from __future__ import annotations

import filecmp
import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher.shown import some
from amp_launcher.typed import leaves
from launcher import admit
from launcher.code import code_store
from launcher.report.document import Table, text
from launcher.report.read import Evidence, group_of
from launcher.runs import ownership

MOST_RUNS = 8
"""Columns that can be read side by side."""
_OF_PLAN = ("recipe", "framework", "mechanism", "trainer", "nodes", "gpus", "processes", "env", "queue", "host")
_GROUPS = ("settings", "plan", "image", "code", "data", "versions", "hardware")
"""The groups of values, in the order in which they are shown."""
_MEASURED = frozenset({"data", "versions", "hardware"})
"""The groups that come from a run's result."""
FILES = 12
"""Files that are named where the code differs."""
DIGEST = 12
"""Letters of a digest or a commit that are shown."""


def differing(evidence: Sequence[Evidence]) -> Table | None:
    """A row for each thing that is not the same in all of these runs; none of one run, and of too many."""
    if not 1 < len(evidence) <= MOST_RUNS:
        return None
    described = [_described(run) for run in evidence]
    keys = list(dict.fromkeys(key for values in described for key in values))
    stems = list(dict.fromkeys(name.rpartition(".")[0] for _, name in keys))
    rows = []
    # By group, and names with a common stem next to each other.
    for key in sorted(keys, key=lambda key: (_GROUPS.index(key[0]), stems.index(key[1].rpartition(".")[0]))):
        group, name = key
        values = [values.get(key, "-") for values in described]
        # A run without a result would differ in all of it.
        counted = [run.has_result or group not in _MEASURED for run in evidence]
        if len(set(itertools.compress(values, counted))) > 1:
            rows.append((f"{group}: {name}", *values))
    if not rows:
        rows.append(("nothing differs", *("",) * len(evidence)))
    return Table(header=("what", *(run.label for run in evidence)), rows=tuple(tuple(map(text, row)) for row in rows))


def _described(evidence: Evidence) -> dict[tuple[str, str], str]:
    """Every compared value of a run as text, by group and name."""
    plan, result, provenance = (evidence.documents[f"{name}.json"] for name in ("plan", "result", "provenance"))
    code, container, script = group_of(provenance, "code"), group_of(plan, "container"), evidence.plan.script
    of_plan = leaves({key: plan.get(key) for key in _OF_PLAN})
    if script is not None:
        of_plan["script"] = script.file and script.file.removeprefix("script/")
        of_plan["script.arguments"] = shlex.join(script.arguments) or None
    states = {key: code.get(key) for key in ("commit", "dirty")}
    if script is not None:  # whose commit is that of its own checkout
        own = group_of(provenance, "script")
        states = {key: own.get(key) for key in states} | {f"launcher.{key}": value for key, value in states.items()}
    groups: dict[str, Mapping[str, Any]] = {
        "settings": leaves(group_of(plan, "settings")),
        "plan": of_plan,
        "image": {"name": container.get("image") or "none", "identity": container.get("identity") or None},
        "code": {"digest": code.get("digest"), **states},
        "data": {"digest": group_of(result, "digests").get("data")},
        "versions": {"interpreter": plan.get("python"), **group_of(result, "versions")},
        "hardware": group_of(result, "hardware"),
    }
    return {(group, name): _text(name, value) for group, values in groups.items() for name, value in values.items()}


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
    return f"Their code differs in {some(sorted(changed), FILES)}."


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


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and name.endswith(("digest", "commit")):
        return value.removeprefix("sha256:")[:DIGEST]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)
