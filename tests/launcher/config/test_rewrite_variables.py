"""The variables of TensorFlow's graph rewrite are refused in planning, with the key to say instead."""

from __future__ import annotations

import pytest

from launcher.errors import UsageError
from tests.launcher.hosts import spec_of

PREFIX = "env.TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


@pytest.mark.parametrize(
    ("variable", "say"),
    [
        ("ALLOWLIST_ADD=Softmax", r"say amp\.allow=\[Softmax\]"),
        ("WHITELIST_ADD=Softmax", r"say amp\.allow=\[Softmax\]"),
        ("DENYLIST_ADD=Conv2D,MatMul", r"say amp\.deny=\[Conv2D,MatMul\]"),
        ("BLACKLIST_ADD=Conv2D", r"say amp\.deny=\[Conv2D\]"),
        ("INFERLIST_ADD=Relu", r"say amp\.infer=\[Relu\]"),
        ("GRAYLIST_ADD=Relu", r"say amp\.infer=\[Relu\]"),
        ("CLEARLIST_ADD=Relu", r"say amp\.clear=\[Relu\]"),
        ("ALLOWLIST_REMOVE=Einsum", r"say which list it belongs on instead: amp\.deny=\[Einsum\] or amp\.infer="),
        ("LEVEL=UNSAFE_FORCE_ALL", r"leave it out; amp\.allow, amp\.deny, amp\.infer and amp\.clear move operations"),
    ],
)
def test_a_variable_is_refused_with_the_key_to_say_instead(variable: str, say: str) -> None:
    with pytest.raises(UsageError, match=rf"{PREFIX}{variable.partition('=')[0]}: amp decides .*; {say}"):
        spec_of("framework=tensorflow", "amp=o1", f"{PREFIX}{variable}")


@pytest.mark.parametrize(
    "words",
    [
        ["framework=torch", f"{PREFIX}DENYLIST_ADD=Conv2D"],
        ["framework=tensorflow", f"{PREFIX}LOG_PATH=/tmp/log"],
        ["recipe=script", "script=a.py", "framework=tensorflow", "train.precision=script", f"{PREFIX}LEVEL=2"],
    ],
    ids=["another framework", "a variable that converts nothing", "a script that rewrites by itself"],
)
def test_others_are_let_pass(words: list[str]) -> None:
    spec_of(*words)
