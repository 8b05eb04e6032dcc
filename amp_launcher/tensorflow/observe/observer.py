"""What really ran in a training step: settings are not evidence.

    observer = PrecisionObserver([model], [optimizer], precision.resolved)     # before the first step
    for number in range(1, total_steps + 1):
        with observer.step(number) if number in steps else contextlib.nullcontext():
            step(...)                                  # one or more tf.functions

TensorFlow exports the optimized graph of a function when it first runs, and under XLA the program compiled from it. In
an observed step it is recorded which functions are executed, each known by what was exported at its first run, and
which operations run outside of functions. So a later step is reported by the graph that it executed, without a new
export. A function that first ran in a step that was not observed is unknown.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from amp_launcher.around.replaced import observed
from amp_launcher.precision import observation
from amp_launcher.precision.observation import Guard
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.tensorflow import xla
from amp_launcher.tensorflow.devices import World
from amp_launcher.tensorflow.observe import float32_probe, graphs, hlo
from amp_launcher.tensorflow.observe.graphs import Reading
from amp_launcher.tensorflow.observe.products import PRODUCTS, base, flops, may_multiply
from amp_launcher.tensorflow.precision.mechanisms import KEPT, layer_names, within

NORMS = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization")
"""Keras layers whose parameters belong to a norm."""


class EagerCall(NamedTuple):
    """A product outside of any graph."""

    operation: str
    dtype: str
    flops: int | None
    """None of an operation whose work is unknown."""
    backward: bool
    recorded: bool
    """Whether a tape recorded it, or it computes a gradient: what trains."""
    scope: str
    device: str


class PrecisionObserver:
    """Observes single training steps of `models`, stepped by `optimizers`, in a `resolved` precision. One at a time."""

    def __init__(
        self,
        models: Sequence[keras.Model],
        optimizers: Sequence[keras.Optimizer],
        resolved: ResolvedPrecision,
        world: World | None = None,
    ) -> None:
        self.reports: list[dict[str, Any]] = []
        """One for each step observed in this process, ready for JSON."""
        self._models = models
        self._optimizers = optimizers
        self._resolved = resolved
        self._world = world
        self._known: dict[str, Reading] = {}
        """The contents of each function, by its name. Of several that first ran together, the first has them all."""
        self._compiled: dict[str, Reading] = {}
        """Those of functions that XLA compiles as a whole."""
        self.guard = Guard()
        """For what is done outside of single steps."""
        self._programs: set[Any] = set()
        """XLA's programs that were read."""
        self._numbers: list[int] = []
        """Numbers of the steps that are being observed."""
        self._evaluation = False
        """An evaluation is being observed."""
        with self.guard():
            self._begin_to_collect()

    def _begin_to_collect(self) -> None:
        context.enable_graph_collection()

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        """Observe one whole step, or the execution of several that it is part of. A step that raises is not reported.

        Nested in itself, it names another step of the same execution.
        """
        self._numbers.append(number)
        if len(self._numbers) > 1:
            yield
            return
        self._evaluation = evaluation
        guard, executed, eager = Guard(), Counter[str](), Counter[EagerCall]()
        try:
            with self._recording(executed, eager, guard):
                yield
            reports: list[dict[str, Any]] = []
            with guard():
                report, parameters = self._report(executed, eager), self._parameters()
                reports = [{**self._head(step, parameters), **report} for step in self._numbers]
            if problems := [*self.guard.problems, *guard.problems]:
                reports = [self._failed(step, problems) for step in self._numbers]
            self.reports += reports
        finally:
            self._numbers.clear()

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Around the first execution of a function, so that a later step which executes it can be reported."""
        if self._numbers:
            yield
            return
        executed: Counter[str] = Counter()
        with self._recording(executed, Counter(), self.guard):
            yield
        with self.guard():
            self._learn(executed)

    @contextlib.contextmanager
    def _recording(self, executed: Counter[str], eager: Counter[EagerCall], guard: Guard) -> Iterator[None]:
        """Count the functions that are executed, and the products outside of them."""
        with contextlib.ExitStack() as stack:
            with guard():
                self._collected()  # discards what ran unobserved before
                stack.enter_context(_counting(executed, eager, self._meet, guard))
            yield

    def _learn(self, executed: Iterable[str]) -> list[str]:
        """Read the graphs of functions that ran for the first time; returns those whose graphs were not exported."""
        new = [name for name in executed if name not in self._known]
        collected = self._collected() if new else None
        if collected is None:
            return new
        self._known[new[0]] = collected
        self._known.update(dict.fromkeys(new[1:], Reading()))
        for name in new if not xla.folder() else ():
            self._known[name].add(self._compiled.get(name, Reading()))
        return []

    def _meet(self, name: str) -> None:
        """Read a function that XLA compiles when it first runs: the script may drop it, and it is exported nowhere."""
        find = context.context().get_function_def
        if graphs.is_compiled(function := find(name)):
            self._compiled[name] = graphs.read_compiled(function, find, self._kept_scope())

    def _report(self, executed: Counter[str], eager: Counter[EagerCall]) -> dict[str, Any]:
        unseen = self._learn(executed)
        ran = Reading()
        for name in executed:
            ran.add(self._known.get(name, Reading()))
        self._add_eager(ran, eager)
        uncounted: Counter[str] = Counter()
        # How often a product runs does not matter either where none at all has the level's dtype.
        none_follows = not ran.unaccounted and not any(self._follows(call) for call in ran.every_call())
        for call, why in ran.uncounted:
            if none_follows or self._follows(call):
                ran.calls.append(call)
                uncounted[why] += not none_follows
            else:
                ran.unaccounted[why] += 1
        if len(ran.per_sample) > 1 and not all(self._follows(call) for call in ran.calls):
            ran.unaccounted["products for an unknown number of samples beside others"] += len(ran.calls)
            ran.calls = []
        problems = []
        if not executed and not eager:
            problems.append("no graph was executed")
        elif unseen:
            problems.append(f"{unseen[0]} was executed, and its graph was made before it was observed")
        exact = all(call["dtype"] != "float32" for call in ran.calls)
        names = self._listed_names()
        return {
            "calls": observation.merged(ran.calls),
            "listed": [
                {"function": name, "dtypes": [dtype], "calls": times}
                for (name, dtype), times in ran.listed.items()
                if name in names
            ],
            "matched": [pattern for pattern in self._resolved.amp.keep_fp32 if ran.kept & set(self._matching(pattern))],
            "unaccounted": dict(ran.unaccounted),
            "uncounted": dict(+uncounted),
            "optimizer": elements_by_dtype(stepped_by(self._optimizers)),
            "float32": {
                "switches": {} if exact else float32_probe.switches(self._resolved.device),
                "arithmetic": {} if exact else float32_probe.arithmetic(self._resolved.device),
            },
            "problems": problems,
        }

    def _add_eager(self, ran: Reading, eager: Counter[EagerCall]) -> None:
        """Add what ran outside of graphs to what ran in them."""
        scope = self._kept_scope()
        for call, times in eager.items():
            # Its scope tells which layer's product it is in forward alone.
            perhaps_kept = call.backward and call.dtype == "float32" and scope is not None
            if call.flops is None or perhaps_kept:
                ran.unaccounted[f"{call.operation} outside of any graph"] += times
                continue
            ran.calls.append(
                observation.call(
                    call.operation,
                    call.dtype,
                    times * call.flops,
                    functions=[call.operation],
                    backward=call.backward,
                    kept=scope is not None and scope in call.scope,
                    device=call.device,
                    calls=times,
                )
            )

    def _follows(self, call: Mapping[str, Any]) -> bool:
        """Whether a call's dtype is the level's, so that the verdict doesn't depend on how much work it is."""
        resolved = self._resolved
        wide = resolved.level == "o0" or call["kept"] or call["operation"] in resolved.deny
        return call["dtype"] == ("float32" if wide else resolved.dtype)

    def _collected(self) -> Reading | None:
        """The contents of all that ran for the first time since the last call; None if nothing did."""
        collected = self._exported()
        folder = xla.folder()
        compiled = (hlo.modules(folder) if folder else set()) - self._programs
        self._programs |= compiled
        if not collected and not compiled:
            return None
        scope = self._kept_scope()
        optimized = [function.post_optimization_graph for function in collected]
        optimized = [graph for graph in optimized if not graphs.is_eager(graph)]
        reading = graphs.read(optimized, self._listed_names(), scope, compiled=bool(compiled))
        for path in sorted(compiled):
            reading.add(hlo.read(path.read_text(), scope, self._resolved.device))
        return reading

    def _exported(self) -> list[Any]:
        """The graphs of the functions that ran for the first time since the last call."""
        metadata = context.export_run_metadata()  # None before TensorFlow is initialised
        return list(metadata.function_graphs) if metadata else []

    def _listed_names(self) -> tuple[str, ...]:
        resolved = self._resolved
        return (*resolved.allow, *resolved.deny, *resolved.infer, *resolved.clear)

    def _kept(self) -> Collection[str]:
        """Names of the layers that `amp.keep_fp32` keeps in float32."""
        names = {name for model in self._models for name in layer_names(model).values()}
        return [name for name in names if any(within(name, pattern) for pattern in self._resolved.amp.keep_fp32)]

    def _matching(self, pattern: str) -> Iterator[str]:
        """Last parts of the names of the layers that a pattern of `amp.keep_fp32` keeps in float32."""
        return (name.rpartition(".")[2] for name in self._kept() if within(name, pattern))

    def _kept_scope(self) -> str | None:
        """Part of the names of the operations of layers kept in float32; None if no layer is."""
        return KEPT if self._kept() else None

    def _failed(self, number: int, problems: list[str]) -> dict[str, Any]:
        """The report of a step that could not be observed: the rest of one may lack something."""
        return {**self._head(number), "problems": problems}

    def _head(self, number: int, parameters: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        resolved = self._resolved
        rank, size = self._rank_and_size()
        head = observation.head(
            number,
            resolved,
            rank=rank,
            world_size=size,
            parameters=parameters,
            float32_parameters=resolved.level != "o3",
            evaluation=self._evaluation,
        )
        return {**head, "xla_clusters": len(self._programs) if xla.folder() else None}

    def _rank_and_size(self) -> tuple[int, int]:
        return (self._world.rank, self._world.size) if self._world else (0, 1)

    def _parameters(self) -> list[dict[str, Any]]:
        return counted(
            ("norm" if type(layer).__name__ in NORMS else "other", variable)
            for model in self._models
            for layer in model._flatten_layers()
            for variable in layer._trainable_variables
        )


@contextlib.contextmanager
def _counting(
    executed: Counter[str], eager: Counter[EagerCall], meet: Callable[[str], None], guard: Guard
) -> Iterator[None]:
    """Count the functions that TensorFlow executes, and the products outside of them."""
    gradients: list[bool] = []
    """One for each gradient that is being computed."""

    def count(
        op_type: str | bytes, inputs: Any, attrs: Any, outputs: Any, op_name: str | None = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        if context.context().has_function(name):
            if not executed[name]:
                meet(name)
            executed[name] += 1
        elif base(name) in PRODUCTS or may_multiply(name):
            call = _eager_call(name, inputs, attrs, outputs, backward=bool(gradients))
            if call.dtype not in graphs.INTEGERS:
                eager[call] += 1

    def gradient_begins(*args: Any, **kwargs: Any) -> bool:
        gradients.append(True)
        return True

    def gradient_ended(*ended: Any, **kwargs: Any) -> None:
        gradients.pop()

    callback = guard.hook(count)
    op_callbacks.add_op_callback(callback)
    try:
        with observed(tf.GradientTape, "gradient", guard, gradient_begins, gradient_ended):
            yield
    finally:
        with guard():
            op_callbacks.remove_op_callback(callback)


def _eager_call(name: str, inputs: Any, attrs: Any, outputs: Any, *, backward: bool) -> EagerCall:
    operation, given = base(name), dict(zip(attrs[::2], attrs[1::2], strict=True))
    work = None
    if operation in PRODUCTS:
        transposed = bool(given.get("transpose_a") or given.get("adj_x"))
        shapes, equation = [tensor.shape.as_list() for tensor in inputs], given.get("equation", "")
        equation = equation.decode() if isinstance(equation, bytes) else equation
        work = flops(operation, shapes, outputs[0].shape.as_list(), transposed, equation)
    return EagerCall(
        operation=operation,
        dtype=outputs[0].dtype.name if len(outputs) else "unknown",
        flops=work,
        backward=backward,
        recorded=backward or not pywrap_tfe.TFE_Py_TapeSetIsEmpty(),
        scope=context.context().scope_name,
        device="cuda" if len(outputs) and "GPU" in outputs[0].device else "cpu",
    )


def counted(parameters: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """A report's `parameters`: elements by group and dtype, from pairs of a group and a variable of Keras or of
    TensorFlow."""
    elements: Counter[tuple[str, str]] = Counter()
    for group, variable in parameters:
        tensor = variable.value if isinstance(variable, keras.Variable) else variable
        elements[group, tensor.dtype.base_dtype.name] += int(tensor.shape.num_elements())
    return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]


def elements_by_dtype(variables: Iterable[Any]) -> dict[str, int]:
    """A report's `optimizer`, from the variables that are stepped."""
    return {entry["dtype"]: entry["elements"] for entry in counted(("", variable) for variable in variables)}


def stepped_by(optimizers: Iterable[keras.Optimizer]) -> list[Any]:
    """The variables that these optimizers step: Keras's, or TensorFlow's own."""
    return [variable for optimizer in optimizers for variable in optimizer._trainable_variables]
