"""Observes what runs in a training step: settings are not evidence.

    observer = PrecisionObserver(model, precision.resolved, precision.gemm_layers)
    for number in range(1, total_steps + 1):
        with observer.step(number) if number in observed_steps else contextlib.nullcontext():
            ...                                    # forward, backward and optimizer, whole
    result["observed"] = verdict.observed(observer.reports, observed_steps)      # with those of all ranks

An observed step computes the same as an unobserved one, bit for bit, but slower: keep it out of what is timed. Other
threads of Python that compute meanwhile are not observed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn

from amp_launcher.precision import observation
from amp_launcher.precision.gemm_layers import NO_LAYERS, Chosen
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.torch.observe import dispatch_observer
from amp_launcher.torch.observe.calls import dtype_name
from amp_launcher.torch.observe.modules import Modules, Owner, local
from amp_launcher.torch.observe.step_observer import StepObserver
from amp_launcher.torch.precision.cast import NORMS


class PrecisionObserver:
    """Observes single training steps of `model`, which may be wrapped by DDP or compiled, in a `resolved` precision."""

    def __init__(
        self,
        model: nn.Module,
        resolved: ResolvedPrecision,
        gemm_layers: Chosen = NO_LAYERS,
        *,
        compiles: bool = False,
    ) -> None:
        """`gemm_layers` are the linear layers that `amp.gemm` is for, and the others (`Precision.gemm_layers`).
        `compiles` says that steps run compiled code even where no module of the model is compiled."""
        self.reports: list[dict[str, Any]] = []
        """One for each step observed on this rank, ready for JSON; they may be saved and restored on resuming."""
        self._model = model
        self._compiles = compiles
        self._current: StepObserver | None = None
        self._resolved = resolved
        self._gemm_layers = gemm_layers
        self._modules = Modules(model, resolved.amp.keep_fp32)

    @contextlib.contextmanager
    def step(
        self, number: int, *, evaluation: bool = False, after_step: bool = False, hooks: bool = True
    ) -> Iterator[None]:
        """Observe one whole step: forward, backward and optimizer. A step that raises gives no report. It may begin in
        a closure of the optimizer, or in its hook after the previous step (`after_step`). Without `hooks`, the caller
        tells the current step of optimizers: in a hook, none can be added or removed."""
        compiles = self._compiles or any(_is_compiled(module) for module in self._model.modules())
        missing = dispatch_observer.missing(compiles=compiles)
        if missing:
            yield
            self.add_problems(
                number,
                [f"torch {torch.__version__} can't be observed where it compiles (it has no {missing})"],
                evaluation,
            )
            return
        guard, stack = observation.Guard(), contextlib.ExitStack()
        step = StepObserver(self._modules, self._resolved, self._gemm_layers.converted, guard)
        self._current = step
        with guard():
            step.start(stack, after_step, hooks)
        try:
            yield
        finally:
            with guard():
                stack.close()
        report: dict[str, Any] = {}
        with guard():
            report = step.report(evaluation)
        if guard.problems:  # what else was observed is incomplete
            self.add_problems(number, guard.problems, evaluation)
        else:
            self.reports.append({**self._head(number, evaluation), **report})

    def add_problems(self, number: int, problems: list[str], evaluation: bool = False) -> None:
        """Add the report of a step that couldn't be observed, with the reasons."""
        self.reports.append({**self._head(number, evaluation), "problems": problems})

    def _owners(self) -> dict[nn.Parameter, Owner]:
        return self._modules.owners()

    def _weight_groups(self) -> list[dict[str, Any]]:
        """A report's `parameters`: how many elements the weights of each group have in each dtype, and one's module."""
        owners, adapters = self._owners(), self._modules.has_adapters()
        elements: Counter[tuple[str, str]] = Counter()
        modules: dict[tuple[str, str], str] = {}
        for parameter, owner in owners.items():
            if parameter.is_floating_point():
                group = "kept" if owner.kept else "norm" if isinstance(owner.module, NORMS) else "other"
                if not parameter.requires_grad and (adapters or self._resolved.level == "o1"):
                    group = "frozen"  # o1 leaves what no optimizer steps as it was loaded, such as a teacher
                elif adapters:
                    group = "adapter"
                key = group, dtype_name(local(parameter).dtype)
                elements[key] += parameter.numel()
                modules[key] = owner.name
        return [
            {"group": group, "dtype": dtype, "elements": count, "module": modules[group, dtype]}
            for (group, dtype), count in elements.items()
        ]

    def _head(self, number: int, evaluation: bool) -> dict[str, Any]:
        ranks = distributed.is_available() and distributed.is_initialized()
        head = observation.head(
            number,
            self._resolved,
            rank=distributed.get_rank() if ranks else 0,
            world_size=distributed.get_world_size() if ranks else 1,
            parameters=self._weight_groups(),
            evaluation=evaluation,
            gemm_layers=self._gemm_layers,
        )
        sharded = [
            parameter
            for parameter in self._owners()
            if hasattr(parameter, "to_local") and parameter.is_floating_point()
        ]
        own = sum(local(weight).numel() for weight in sharded)
        return {**head, "shards": {"elements": own, "of": sum(weight.numel() for weight in sharded)}}


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
