"""The report of one observed step on one rank: a plain dictionary, the same from every framework's witness.

    {"rank": 0, "world_size": 1, "step": 1,
     "rule": {"level", "dtype", "allow", "deny", "either", "keep_fp32", "masters", "tf32", "device",
              "float32_parameters"},                     where parameters are cast as they are used, they stay float32
     "calls": [{"operation", "functions", "backward", "dtype", "kept", "compiled", "device", "calls", "flops"}],
     "listed": [{"function", "dtypes", "calls"}],        functions of allow and deny, dtypes of their tensors in order
     "unseen": [function],                               functions of allow and deny whose calls can't be seen
     "asked": {list: {meaning: as written}},             the user's entries of amp's lists and of keep_fp32
     "matched": [pattern],                               patterns of keep_fp32 of which a module ran
     "evaluation": False,                                it is of an evaluation, and shows what matches entries alone
     "unaccounted": {operation: times},                  what may have multiplied matrices and wasn't counted
     "audit": "",                                        where a second witness disagrees
     "parameters": [{"group": "norm" | "kept" | "other", "dtype", "elements"}],
     "optimizer": {dtype: elements},                     what optimizers stepped; empty where no step was taken
     "reduced": {dtype: elements},                       gradients summed over ranks; empty where none were seen
     "float32": {"switches": {name: setting}, "arithmetic": {product: "float32" | "tf32" | "bfloat16"}},
     "xla_clusters": None,
     "problems": [text]}                                 why this step couldn't be observed

A call counts by its matrices alone, in the widest of their dtypes. `functions` names what the call may have come
from, `kept` is None where it can't be told whether it was inside a module of `keep_fp32`. Standard library only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from recipes.precision.levels import Amp
from recipes.precision.operations import PADDLE


class Guard:
    """Everything that observes runs inside of this: an error there makes the step unknown, and training goes on.

    Most of what the witnesses use of the frameworks is private, and any of it may be gone in the next version.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the step that is observed has nothing to do with it
            problem = f"observing it failed: {type(error).__name__}: {error}"
            if problem not in self.problems:
                self.problems.append(problem)


def head(
    step: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    amp: Amp,
    dtype: str,
    allow: Sequence[str],
    deny: Sequence[str],
    either: Sequence[str] = (),
    tf32: bool,
    device: str,
    parameters: Sequence[dict[str, Any]],
    float32_parameters: bool | None = None,
    evaluation: bool = False,
) -> dict[str, Any]:
    """The report of a step before anything of it is seen: what was asked for, and the parameters as they are.

    `allow` and `deny` are the lists in force, `amp` what they came from; what is in `either` may run in the level's
    dtype and in float32. `float32_parameters` is None where the level
    decides what dtype parameters have.
    """
    rule = {
        "level": amp.level,
        "dtype": dtype,
        "allow": list(allow),
        "deny": list(deny),
        "either": list(either),
        "keep_fp32": list(amp.keep_fp32),
        "masters": amp.level == "o2" and amp.master_weights is not False,
        "tf32": tf32,
        "device": device,
    }
    if float32_parameters is not None:
        rule["float32_parameters"] = float32_parameters
    return {
        "rank": rank,
        "world_size": world_size,
        "step": step,
        "rule": rule,
        "calls": [],
        "listed": [],
        "unseen": [],
        "asked": {
            "allow": {PADDLE.get(each, each): each for each in amp.allow},
            "deny": {PADDLE.get(each, each): each for each in amp.deny},
            "infer": {each: each for each in amp.infer},
            "clear": {each: each for each in amp.clear},
            "keep_fp32": {each: each for each in amp.keep_fp32},
        },
        "matched": [],
        "evaluation": evaluation,
        "unaccounted": {},
        "audit": "",
        "parameters": list(parameters),
        "optimizer": {},
        "reduced": {},
        "float32": {"switches": {}, "arithmetic": {}},
        "xla_clusters": None,
        "problems": [],
    }
