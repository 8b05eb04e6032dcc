"""What really ran in a training step: settings are not evidence.

    observer = PrecisionObserver([model], precision)   # before the first step
    for number in range(1, total_steps + 1):
        with observer.step(number) if number in steps else contextlib.nullcontext():
            step(...)                                  # one or more functions of TensorFlow

TensorFlow gives away the optimized graph of a function when it is first run, and under XLA the program that became of
it. In an observed step it is seen which functions are executed, each known by what was collected when it ran first, and
which operations run outside of any. So what is reported of a later step is the graph that it executed, not a new look
at it. A function that ran first in a step that nobody watched is unknown.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from recipes.precision import observation, verdict
from recipes.precision.levels import Amp
from recipes.precision.observation import Guard
from recipes.tensorflow_ import xla
from recipes.tensorflow_.devices import World
from recipes.tensorflow_.observe import float32_probe, graphs, hlo
from recipes.tensorflow_.observe.graphs import Reading
from recipes.tensorflow_.observe.products import PRODUCTS, base, may_multiply
from recipes.tensorflow_.precision.mechanisms import KEPT, within

NORMS = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization")
"""Keras layers whose parameters belong to a norm."""


def observed(reports: Iterable[dict[str, Any]], planned: Iterable[int] = ()) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks; a step of `planned` that is not there is `unknown`."""
    return verdict.observed(reports, planned)


class Applied(Protocol):
    """The precision that steps are held against, as far as observation reads it."""

    amp: Amp
    dtype: str
    device: str
    tf32: bool
    allow: Sequence[str]
    deny: Sequence[str]
    either: Sequence[str]
    kept: Sequence[str]
    """Names of the layers kept in float32."""
    optimizers: Sequence[keras.Optimizer]


class PrecisionObserver:
    """Observes single training steps of `models` under `precision`, one at a time."""

    def __init__(self, models: Sequence[keras.Model], precision: Applied, world: World | None = None) -> None:
        self.reports: list[dict[str, Any]] = []
        """One for each step observed in this process, ready for JSON."""
        self._models = models
        self._precision = precision
        self._world = world
        self._known: dict[str, Reading] = {}
        """By the name of a function: what it was seen to run. Of several that ran first together, the first has it."""
        self._guard = Guard()
        """For what is done outside of single steps."""
        self._before: set[Any] = set()
        self._watched: list[int] = []
        """Numbers of the steps under way that are watched."""
        self._evaluation = False
        """What is watched is an evaluation."""
        with self._guard():
            self._begin_to_collect()

    def _begin_to_collect(self) -> None:
        context.enable_graph_collection()

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        """Watch one whole step, or the execution of several that it is part of. Nothing is reported of one that raises.

        Within itself it is another step of the same execution.
        """
        self._watched.append(number)
        if len(self._watched) > 1:
            yield
            return
        self._evaluation = evaluation
        guard, executed, eager = Guard(), Counter[str](), Counter[str]()
        try:
            with self._seeing(executed, eager, guard):
                yield
            report: dict[str, Any] = {}
            parameters: list[dict[str, Any]] = []
            with guard():
                report, parameters = self._report(executed, eager), self._parameters()
            problems = [*self._guard.problems, *guard.problems]
            if problems:
                report = {"problems": problems}  # what else was seen is not all that there was
            self.reports += [{**self._head(each, parameters), **report} for each in self._watched]
        finally:
            self._watched.clear()

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Around what executes a function first, so that a later step which executes it can be told of."""
        if self._watched:
            yield
            return
        executed: Counter[str] = Counter()
        with self._seeing(executed, Counter(), self._guard):
            yield
        with self._guard():
            self._learn(executed)

    @contextlib.contextmanager
    def _seeing(self, executed: Counter[str], eager: Counter[str], guard: Guard) -> Iterator[None]:
        """Count the functions that are executed, and products outside of them."""
        with contextlib.ExitStack() as stack:
            with guard():
                self._collected()  # of what ran before, unseen
                stack.enter_context(_called_back(executed, eager, guard))
            yield

    def _learn(self, executed: Iterable[str]) -> list[str]:
        """Take in the graphs of functions that were executed for the first time; returns those that had been made."""
        new = [name for name in executed if name not in self._known]
        collected = self._collected() if new else None
        if collected is None:
            return new
        self._known[new[0]] = collected
        self._known.update(dict.fromkeys(new[1:], Reading()))
        return []

    def _report(self, executed: Counter[str], eager: Counter[str]) -> dict[str, Any]:
        unseen = self._learn(executed)
        readings = [self._known[name] for name in executed if name in self._known]
        unaccounted = Counter({f"{name} outside of any graph": times for name, times in eager.items()})
        listed: Counter[tuple[str, str]] = Counter()
        kept: set[str] = set()
        for each in readings:
            unaccounted.update(each.unaccounted)
            listed.update(each.listed)
            kept |= each.kept
        calls = [call for each in readings for call in each.calls]
        if len({each.per_sample for each in readings if each.calls}) > 1:
            unaccounted[graphs.MIXED] += len(calls)
            calls = []
        problems = []
        if not executed:
            problems.append("no graph was executed")
        elif unseen:
            problems.append(f"{unseen[0]} was executed, and its graph was made before anyone watched")
        inexact = any(call["dtype"] == "float32" for call in calls)
        precision = self._precision
        names = (*precision.allow, *precision.deny, *precision.either)
        return {
            "calls": _aggregate(calls),
            "listed": [
                {"function": name, "dtypes": [dtype], "calls": times}
                for (name, dtype), times in listed.items()
                if name in names
            ],
            "matched": [each for each in precision.amp.keep_fp32 if kept & set(self._named(each))],
            "unaccounted": dict(unaccounted),
            "audit": "; ".join(each.audit for each in readings if each.audit),
            "optimizer": _elements(stepped_by(precision.optimizers)),
            "float32": {
                "switches": float32_probe.switches(precision.device) if inexact else {},
                "arithmetic": float32_probe.arithmetic() if inexact else {},
            },
            "problems": problems,
        }

    def _collected(self) -> Reading | None:
        """What was run for the first time since this was last asked; None where nothing was."""
        names = (*self._precision.allow, *self._precision.deny, *self._precision.either)
        kept = self._kept_scope()
        metadata = context.export_run_metadata()  # None before TensorFlow has begun
        collected = list(metadata.function_graphs) if metadata else []
        folder = xla.folder()
        compiled = (hlo.modules(folder) if folder else set()) - self._before
        self._before |= compiled
        if not collected and not compiled:
            return None
        found = graphs.read(collected, names, kept, compiled=bool(compiled))
        programs = [hlo.read(path.read_text(), kept, self._precision.device) for path in sorted(compiled)]
        mixed = found.per_sample and any(one.calls for one in programs)  # XLA compiles for a number that it knows
        for one in programs:
            found.calls.extend(one.calls)
            found.listed.update(one.listed)
            found.kept.update(one.kept)
            found.unaccounted.update(one.unaccounted)
        if mixed:
            found.unaccounted[graphs.MIXED] += len(found.calls)
            found.calls.clear()
        return found

    def _named(self, pattern: str) -> Iterator[str]:
        """Names of the layers that a pattern of `amp.keep_fp32` keeps in float32, without what they are in."""
        for name in self._precision.kept:
            if within(name, pattern):
                yield name.rpartition(".")[2]

    def _kept_scope(self) -> str | None:
        """What stands in the names of the operations of layers kept in float32; None where none is."""
        return KEPT if self._precision.kept else None

    def _head(self, number: int, parameters: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        precision = self._precision
        rank, size = self._rank_and_size()
        head = observation.head(
            number,
            rank=rank,
            world_size=size,
            amp=precision.amp,
            dtype=precision.dtype,
            allow=precision.allow,
            deny=precision.deny,
            either=precision.either,
            tf32=precision.tf32,
            device=precision.device,
            parameters=parameters,
            float32_parameters=precision.amp.level != "o3",
            evaluation=self._evaluation,
        )
        return {**head, "xla_clusters": len(self._before) if xla.folder() else None}

    def _rank_and_size(self) -> tuple[int, int]:
        return (self._world.rank, self._world.size) if self._world else (0, 1)

    def _parameters(self) -> list[dict[str, Any]]:
        elements: Counter[tuple[str, str]] = Counter()
        for layer in (layer for model in self._models for layer in model._flatten_layers()):
            group = "norm" if type(layer).__name__ in NORMS else "other"
            for variable in layer._trainable_variables:
                elements[group, variable.value.dtype.name] += int(variable.value.shape.num_elements())
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


@contextlib.contextmanager
def _called_back(executed: Counter[str], eager: Counter[str], guard: Guard) -> Iterator[None]:
    """Count, of the operations that TensorFlow executes, functions and products outside of them."""

    def see(
        op_type: str | bytes, inputs: Any, attrs: Any, outputs: Any, op_name: str | None = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        with guard():
            name = op_type.decode() if isinstance(op_type, bytes) else op_type
            if context.context().has_function(name):
                executed[name] += 1
            elif base(name) in PRODUCTS or may_multiply(name):
                eager[name] += 1

    op_callbacks.add_op_callback(see)
    try:
        yield
    finally:
        with guard():
            op_callbacks.remove_op_callback(see)


def stepped_by(optimizers: Iterable[keras.Optimizer]) -> list[Any]:
    """The variables that these optimizers step."""
    return [each for optimizer in optimizers for each in optimizer._trainable_variables]


def _elements(variables: Iterable[Any]) -> dict[str, int]:
    """How many numbers of each dtype these variables hold, as TensorFlow has them."""
    found: Counter[str] = Counter()
    for each in variables:
        found[each.value.dtype.name] += int(each.value.shape.num_elements())
    return dict(found)


def _aggregate(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that differ in nothing but their number and work as one."""
    total: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in calls:
        key = tuple(str(value) for name, value in each.items() if name not in ("calls", "flops"))
        if key in total:
            total[key]["calls"] += each["calls"]
            total[key]["flops"] += each["flops"]
        else:
            total[key] = dict(each)
    return list(total.values())
