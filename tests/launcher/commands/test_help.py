"""`run --help` lists every key that can be set."""

from __future__ import annotations

import re

from launcher.commands.help import keys
from launcher.config.schema import GROUPS, known_keys


def test_every_key_has_a_line():
    listed = set(re.findall(r"^  ([a-z0-9_]+(?:\.[a-z0-9_]+)*) ", keys([]), re.MULTILINE))
    chosen_by_name = {f"{group}.kind" for group in GROUPS} | {"loss_scale.preset"}
    assert set(known_keys()) - listed <= chosen_by_name
    assert {"container.network", "container.shm", "container.limits", "cluster.login", "telemetry.every"} <= listed
