"""The report of one observed step on one rank: a plain dictionary, the same from every framework's observer.

    {"rank": 0, "world_size": 1, "step": 1,
     "rule": {"level", "dtype", "allow", "deny", "either", "keep_fp32", "masters", "tf32", "device",
              "float32_parameters",                      "either": may run in both dtypes; the last: all are float32
              "scaled": True,                            only where the level scales the loss
              "lists": "refused",                        only where amp.deny is refused
              "parallel": "fsdp",                        only where parameters are due in shards
              "gemm": {"format", "layers": [name], "left_out": {name: reason}}},         only where amp.gemm isn't half
     "calls": [{"operation", "functions", "backward", "role", "dtype", "kept", "compiled", "device", "calls", "flops",
                "operands": [dtype], "emulates": [dtype], "scales": [dtype], "layers": [name] or None}],
     "listed": [{"function", "dtypes", "calls"}],        functions of allow and deny, dtypes of their tensors in order
     "unseen": [function],                               functions of allow and deny whose calls can't be seen
     "asked": {list: {meaning: as written}},             the user's own entries of amp's lists and of keep_fp32
     "matched": [pattern],                               patterns of keep_fp32 of which a module ran
     "evaluation": False,                                an evaluation's: it shows only which entries matched
     "operations": 0,                                    those that ran, in eager torch
     "unaccounted": {operation: times},                  what may have multiplied matrices and wasn't counted
     "ignored": {operation: times},                      of those the ones of proof.ignore
     "apart": {text: times},                             products that no level is for, as of sparse matrices
     "unwritten": {what: tensors},                       what training used and nothing that was seen wrote
     "tensors": 0,                                       those that training used
     "old_weights": 0,                                   products with copies of weights that have changed since
     "uncounted": {operation: times},                    calls that follow the rule, of unknown work
     "audit": "",                                        where a second observer disagrees
     "unaudited": "",                                    why there was no second observer
     "kernels": 0,                                       the GPU's that multiplied matrices for counted operations
     "uncounted_kernels": {name and operation: times},   its others whose names show that they multiply matrices
     "unlaunched_kernels": {name: times},                those of them that no operator launched, where that is judged
     "parameters": [{"group": "norm" | "kept" | "other", "dtype", "elements", "module"}], or "adapter" | "frozen", where
                                                         the float32 weights that train are few beside frozen half ones;
                                                         the name of a module that has some, where it is known
     "unscaled": True,                                   a loss scale was taken out of gradients; absent if not known
     "optimizer": {dtype: elements},                     what optimizers stepped; empty where no step was taken
     "optimizer_state": {dtype: elements},               what optimizers keep for each weight; a rank's shards of it
     "reduced": {dtype: elements},                       gradients summed over ranks; empty where none were seen
     "gathered": {dtype: elements},                      parameters that ranks gathered from their shards to compute
     "shards": {"elements", "of"},                       parameters in shards: this rank's part, and of how many
     "float32": {"switches": {name: setting}, "arithmetic": {product: "float32" | "tf32" | "bfloat16"}},
     "xla_clusters": None,
     "problems": [text],                                 why this step couldn't be observed
     "steps": 2,                                         of a script: how many this is of, the first of them `step`
     "extra": True,                                      only where other ranks need not have observed it
     "grows": True}                                      only where more will be observed before the report is final

A call's dtype is the widest of its matrices'. `functions` are those that it may have come from; `kept` is None
where it isn't known whether it was inside a module of `keep_fp32`. `role` is one of `precision.gemm.ROLES`,
empty where it isn't known. The last four keys are there under `amp.gemm`, and where a dtype is narrower than half:
`operands` in the order of `GemmFormat`, `emulates` the narrower dtypes that they were rounded to before, `scales` the
dtypes of the numbers that scale them in the product, `layers` the modules with the weights, None where they aren't
known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.gemm_layers import NO_LAYERS, Chosen
from amp_launcher.precision.operations import PADDLE
from amp_launcher.precision.resolved import ResolvedPrecision

_Returned = TypeVar("_Returned")


def call(
    operation: str,
    dtype: str,
    flops: int,
    *,
    functions: Sequence[str],
    backward: bool,
    kept: bool,
    device: str,
    calls: int = 1,
    compiled: bool = False,
) -> dict[str, Any]:
    """An entry of a report's `calls`, of a framework that tells no more of them."""
    return {
        "operation": operation,
        "functions": list(functions),
        "backward": backward,
        "dtype": dtype,
        "kept": kept,
        "compiled": compiled,
        "device": device,
        "calls": calls,
        "flops": flops,
    }


def merged(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same calls, with those in one that differ in nothing but their number and work."""
    total: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry in calls:
        key = tuple(str(value) for name, value in entry.items() if name not in ("calls", "flops"))
        if key in total:
            total[key]["calls"] += entry["calls"]
            total[key]["flops"] += entry["flops"]
        else:
            total[key] = dict(entry)
    return list(total.values())


class Guard:
    """Runs code that observes: an error in it makes the verdict unknown, and training continues.

    Most of what observers use of the frameworks is private, and any of it may be gone in the next version. What
    isn't an `Exception` passes, and so do the `passing`: they end a script on purpose.
    """

    def __init__(self, *passing: type[Exception], failed: Callable[[], None] = lambda: None) -> None:
        """`failed` is called once, at the first error: it ends what is observed."""
        self.problems: list[str] = []
        self._passing = passing
        self._failed = failed

    def __call__(self) -> Guard:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        problem = f"observing it failed: {type(error).__name__}: {error}{_place(traceback)}"
        first = not self.problems
        if problem not in self.problems:
            self.problems.append(problem)
        if first:
            with self:  # an error in there is another problem
                self._failed()
        return True  # whatever it is, the step that is observed has nothing to do with it

    def hook(self, function: Callable[..., _Returned]) -> Callable[..., _Returned | None]:
        """The function as a hook of a framework. It returns None where it fails, and isn't called after a failure."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> _Returned | None:
            if self.problems:
                return None
            try:  # `with self` takes several times as long, and hooks run in each step
                return function(*args, **kwargs)
            except Exception as error:
                if not self.takes(error):
                    raise
                return None

        return call

    def takes(self, error: Exception) -> bool:
        """Whether this error of an observer was recorded, and must not be raised."""
        return self.__exit__(type(error), error, error.__traceback__)


def _place(traceback: TracebackType | None) -> str:
    """The innermost line of ours that an error passed, in brackets; empty where there is none."""
    root, place = Path(__file__).parents[2], ""
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file.is_relative_to(root / "amp_launcher"):
            place = f" ({file.relative_to(root)}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


def head(
    step: int,
    resolved: ResolvedPrecision,
    *,
    rank: int = 0,
    world_size: int = 1,
    parameters: Sequence[dict[str, Any]],
    float32_parameters: bool | None = None,
    evaluation: bool = False,
    gemm_layers: Chosen = NO_LAYERS,
) -> dict[str, Any]:
    """The report of a step before it is observed: the rule that it is judged by, and the parameters as they are.

    `float32_parameters` is None where the level decides the dtype of parameters. `gemm_layers` are the linear layers
    that `amp.gemm` is for, and the others.
    """
    amp, observed_only = resolved.amp, resolved.lists == "observed"
    rule = {
        "level": resolved.level,
        "dtype": resolved.dtype,
        "allow": list(resolved.allow),
        "deny": [] if observed_only else list(resolved.deny),
        "either": [*resolved.infer, *resolved.clear, *(resolved.deny if observed_only else ())],
        "keep_fp32": list(amp.keep_fp32),
        "masters": resolved.master_weights,
        "tf32": resolved.tf32,
        "device": resolved.device,
    }
    if resolved.loss_scale.mode != "none":
        rule["scaled"] = True
    if resolved.lists == "refused":
        rule["lists"] = resolved.lists
    if resolved.parallel == "fsdp":
        rule["parallel"] = resolved.parallel
    if float32_parameters is not None:
        rule["float32_parameters"] = float32_parameters
    if resolved.gemm != HALF:
        rule["gemm"] = {
            "format": resolved.gemm,
            "layers": list(gemm_layers.converted),
            "left_out": dict(gemm_layers.left_out),
        }
    return {
        "rank": rank,
        "world_size": world_size,
        "step": step,
        "rule": rule,
        "calls": [],
        "listed": [],
        "unseen": [],
        "asked": {
            "allow": {PADDLE.get(name, name): name for name in amp.allow},
            "deny": {PADDLE.get(name, name): name for name in amp.deny},
            **{key: {name: name for name in getattr(amp, key)} for key in ("infer", "clear", "keep_fp32")},
        },
        "matched": [],
        "evaluation": evaluation,
        "unaccounted": {},
        "unwritten": {},
        "tensors": 0,
        "audit": "",
        "parameters": list(parameters),
        "optimizer": {},
        "optimizer_state": {},
        "reduced": {},
        "gathered": {},
        "shards": {"elements": 0, "of": 0},
        "float32": {"switches": {}, "arithmetic": {}},
        "xla_clusters": None,
        "problems": [],
    }
