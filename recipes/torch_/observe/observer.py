"""What really ran in a training step, observed while it runs: settings are not evidence.

    steps = choose_steps(total_steps, seed)
    observer = PrecisionObserver(model, precision.resolved)
    for number in range(1, total_steps + 1):
        with observer.step(number) if number in steps else contextlib.nullcontext():
            ...                                    # forward, backward and optimizer, whole
    result["observed"] = observed(gather(observer.reports), steps)

An observed step computes the same as an unobserved one, bit for bit, but slower: keep it out of what is timed. Other
threads of Python that compute meanwhile are not observed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import distributed, nn

from recipes.precision import observation, verdict
from recipes.precision.resolved import ResolvedPrecision
from recipes.torch_.observe import dispatch_observer
from recipes.torch_.observe.calls import dtype_name, local
from recipes.torch_.observe.step_observer import StepObserver
from recipes.torch_.precision.cast import NORMS
from recipes.trainer.training import choose_steps

__all__ = ["PrecisionObserver", "choose_steps", "gather", "observed"]


def gather(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of all ranks, on every rank. Collective where `torch.distributed` is initialised."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return list(reports)
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, list(reports))
    return [report for each in everyone for report in each]


def observed(reports: Iterable[dict[str, Any]], planned: Iterable[int] = ()) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks; a step of `planned` that is not there is `unknown`."""
    return verdict.observed(reports, planned)


class PrecisionObserver:
    """Observes single training steps of `model`, which may be wrapped by DDP or compiled, in a `resolved` precision."""

    def __init__(
        self,
        model: nn.Module,
        resolved: ResolvedPrecision,
        gemm_layers: Sequence[str] = (),
        gemm_left_out: Mapping[str, str] | None = None,
    ) -> None:
        """`gemm_layers` are the linear layers that `amp.gemm` is for, `gemm_left_out` the others, each with the reason
        (`Precision.gemm_layers`, `Precision.gemm_left_out`)."""
        self.reports: list[dict[str, Any]] = []
        """One for each step observed on this rank, ready for JSON; they may be saved and restored on resuming."""
        self._model = model
        self._resolved = resolved
        self._gemm_layers = tuple(gemm_layers)
        self._gemm_left_out = dict(gemm_left_out or {})
        self._kept: dict[nn.Module, set[str]] = {}
        """Modules kept in float32, with the patterns of `amp.keep_fp32` that name them or what they are in."""
        self._names = names_of(model)
        for module, name in self._names.items():
            parents = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
            self._keep(module, parents)

    def _keep(self, module: nn.Module, names: Iterable[str]) -> None:
        """Record the module as kept if a pattern matches one of these names."""
        patterns = {each for each in self._resolved.amp.keep_fp32 for name in names if fnmatchcase(name, each)}
        if patterns:
            self._kept.setdefault(module, set()).update(patterns)

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        """Observe one whole step: forward, backward and optimizer. A step that raises gives no report."""
        missing = dispatch_observer.missing(compiles=any(_is_compiled(each) for each in self._model.modules()))
        if missing:
            yield
            head = self._head(number, evaluation)
            self.reports.append({**head, "problems": [f"this torch has no {missing}"]})
            return
        guard, stack = observation.Guard(), contextlib.ExitStack()
        rounding = self._resolved.rounding != "nearest"
        step = StepObserver(self._kept, self._owners(), self._names, self._gemm_layers, guard, rounding=rounding)
        with guard():
            step.start(stack)
        try:
            yield
        finally:
            with guard():
                stack.close()
        report: dict[str, Any] = {}
        with guard():
            report = step.report(self._resolved)
        if guard.problems:
            report = {"problems": guard.problems}  # what else was observed is incomplete
        self.reports.append({**self._head(number, evaluation), **report})

    def _head(self, number: int, evaluation: bool) -> dict[str, Any]:
        ranks = distributed.is_available() and distributed.is_initialized()
        head = observation.head(
            number,
            self._resolved,
            rank=distributed.get_rank() if ranks else 0,
            world_size=distributed.get_world_size() if ranks else 1,
            parameters=self._parameters(),
            evaluation=evaluation,
            gemm_layers=self._gemm_layers,
            gemm_left_out=self._gemm_left_out,
        )
        sharded = [each for each in self._owners() if hasattr(each, "to_local") and each.is_floating_point()]
        elements = {
            "elements": sum(local(each).numel() for each in sharded),
            "of": sum(each.numel() for each in sharded),
        }
        return {**head, "shards": elements}

    def _owners(self) -> dict[nn.Parameter, tuple[nn.Module, bool]]:
        """The module of each parameter, and whether it is kept in float32; a shared one is if any of its modules is."""
        owners: dict[nn.Parameter, tuple[nn.Module, bool]] = {}
        for module in self._names:
            for parameter in module.parameters(recurse=False):
                if module in self._kept or parameter not in owners:
                    owners[parameter] = (module, module in self._kept)
        return owners

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for parameter, (module, kept) in self._owners().items():
            if parameter.is_floating_point():
                group = "kept" if kept else "norm" if isinstance(module, NORMS) else "other"
                elements[group, dtype_name(local(parameter).dtype)] += parameter.numel()
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


def names_of(model: nn.Module) -> dict[nn.Module, str]:
    """Each module with its name in the model as it was before wrapping."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if inner is None:
            break
        model = inner
    return {module: name.replace("_orig_mod.", "") for name, module in model.named_modules()}


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
