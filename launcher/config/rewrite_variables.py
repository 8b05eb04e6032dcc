"""TensorFlow's own variables for the lists of its graph rewrite, refused with the key to say instead.

The trainer sets them from `amp`, and takes away what it finds: operations that were moved past `amp` would run in
another precision than the one that is judged.
"""

from __future__ import annotations

import re

from recipes.settings import Settings
from recipes.typed import SettingsError

_NAME = re.compile(
    r"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_(?:(ALLOW|WHITE|DENY|BLACK|INFER|GRAY|CLEAR)LIST_(ADD|REMOVE)|LEVEL)"
)
_KEYS = {"ALLOW": "allow", "WHITE": "allow", "DENY": "deny", "BLACK": "deny", "INFER": "infer", "GRAY": "infer"}
"""Lists by their names and by those that TensorFlow gave them first; the fourth has one name, `clear`."""


def check(training: Settings, env: dict[str, str]) -> None:
    """Raise `SettingsError` for one of the variables, where the launcher or the trainer decides on the lists."""
    settings = training.train
    theirs = training.recipe == "script" and (settings.bare or settings.precision == "script")
    if training.framework != "tensorflow" or theirs:
        return
    for name, value in env.items():
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        listed, change = match.groups()
        key = _KEYS.get(listed or "", "clear")
        if change == "ADD":
            say = f"say amp.{key}=[{value}]"
        elif change == "REMOVE":
            others = " or ".join(
                f"amp.{other}=[{value}]" for other in ("allow", "deny", "infer", "clear") if other != key
            )
            say = f"say which list it belongs on instead: {others}"
        else:
            say = "leave it out; amp.allow, amp.deny, amp.infer and amp.clear move operations"
        raise SettingsError(
            f"env.{name}: amp decides which operations the graph rewrite converts; {say}", f"env.{name}"
        )
