"""plan.json: a `Plan` as JSON, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, get_args

from amp_launcher.precision.levels import Framework
from amp_launcher.recipe import NAMES, find
from amp_launcher.settings import PLAN_SCHEMA, Settings
from amp_launcher.typed import SettingsError, build, convert, not_a_choice, plain, show
from launcher.config.schema import CLUSTERS
from launcher.errors import UsageError, of_settings
from launcher.plan.model import Plan


def to_json(plan: Plan) -> dict[str, Any]:
    """What few plans have, such as the arms of a comparison, stands there where it isn't empty."""
    rare = {"inherited", "passed", "left_behind", "comparison", "published", "arms", "arm", "shared", "replay"}
    rare |= {"preemption", "notify", "tracker", "job", "uv", "gpu_type", "restarts"}
    values: dict[str, Any] = {**plain(plan), "precision": plain(plan.precision) or {}}
    rare -= {"restarts"} if plan.restarts is not None else set()  # of which 0 is one
    return {key: value for key, value in values.items() if key not in rare or value not in (None, [], "", 0)}


def of_run(values: Mapping[str, Any], folder: str) -> Plan:
    """The plan of the run in that folder, wherever it was when the plan was written. Raises as `from_json` does."""
    plan = from_json(values)
    with contextlib.suppress(OSError, ValueError):
        if os.path.samefile(f"{plan.run_root}/{plan.run_id}", folder):  # under another name, as through a link
            return plan
    return plan.at(folder)


def from_json(values: Mapping[str, Any]) -> Plan:
    """A plan as `plan.json` holds it. Raises `UsageError` if it is of another version, or damaged."""
    if values.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"this plan has schema {values.get('schema')}, and this launcher reads schema {PLAN_SCHEMA}")
    with of_settings("this plan is damaged, or of another version: "):
        plan = build(Plan, {**values, "precision": values.get("precision") or None, "arms": []})
        arms = convert(values.get("arms") or [], tuple[dict[str, Any], ...], "arms")
        plan = dataclasses.replace(plan, settings=_settings(plan), cluster=_cluster(plan.cluster))
        _check_whole(plan)
    return dataclasses.replace(plan, arms=tuple(map(from_json, arms)))


def _settings(plan: Plan) -> dict[str, Any]:
    """A plan's settings with every value of its type. Raises `SettingsError`."""
    train: Any = plan.settings.get("train")
    if plan.recipe in NAMES:  # one of a person's own is in the run's code, and is not looked for here
        train = convert(train, find(plan.recipe).settings, "settings.train")
    elif not isinstance(train, Mapping):
        raise SettingsError("settings.train should be a group of keys", "settings.train")
    values = build(Settings, {**plan.settings, "train": None}, prefix="settings.")
    return dict(plain(dataclasses.replace(values, train=train)))


def _check_whole(plan: Plan) -> None:
    """Refuse values that no plan has together. Raises `SettingsError`."""
    slurm = plan.cluster["kind"] == "slurm"
    for key, right in (
        ("queue", plan.queue == ("slurm" if slurm else "direct")),
        (
            "framework",
            plan.framework in (find(plan.recipe).frameworks if plan.recipe in NAMES else get_args(Framework)),
        ),
        ("nodes", plan.nodes == 1 or (slurm and plan.nodes > 1)),
    ):
        if not right:
            raise SettingsError(f"{key}={getattr(plan, key)} is no plan's")


def _cluster(values: Mapping[str, Any]) -> dict[str, Any]:
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in CLUSTERS:
        raise SettingsError(not_a_choice("cluster.kind", show(kind), CLUSTERS), "cluster.kind")
    return dict(plain(build(CLUSTERS[kind], values, prefix="cluster.")))
