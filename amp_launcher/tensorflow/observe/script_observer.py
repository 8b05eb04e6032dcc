"""Observes a user's script in TensorFlow from its start to its end, as one step.

Models and optimizers become known as the script makes them. What ran until each of its optimizers has stepped is judged
at once, and all of it again at the end.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from amp_launcher.around.once_imported import once_imported
from amp_launcher.around.replaced import observed
from amp_launcher.loop.divergence import Diverged
from amp_launcher.precision.observation import Guard
from amp_launcher.tensorflow.observe import graphs
from amp_launcher.tensorflow.observe.graphs import Reading
from amp_launcher.tensorflow.observe.observer import (
    NORMS,
    EagerCall,
    PrecisionObserver,
    counted,
    elements_by_dtype,
    stepped_by,
)
from amp_launcher.tensorflow.observe.patches import (
    CHOSEN,
    after,
    naming_chosen_layers,
    naming_kerass_steps,
    once_begun,
)
from amp_launcher.tensorflow.observe.sessions import Sessions
from amp_launcher.tensorflow.precision import Mechanism, Precision
from amp_launcher.tensorflow.precision.mechanisms import KEPT
from amp_launcher.world.world import rank_and_size

WHOLE_RUN = 1
"""Number of the one step as which a script is observed."""
FIRST_STEPS = 2
"""Optimizer steps before the first judgement, so that both of a GAN's networks were trained."""
MOST_CHECKS = 50
"""Executions after the first step in which a second one is looked for: reading step counts waits for the device."""
COUNTS = ("iteration", "iter", "global_step")
"""Names of the variables in which optimizers of tf_keras, its legacy ones, and TensorFlow 1's count their steps."""
OLDER_SCALE = "current_loss_scale"
"""Name of the variable in which tf_keras has its loss scale."""


class ScriptObserver(PrecisionObserver):
    """Observes a whole script."""

    def __init__(self, precision: Mechanism, *, scaled_by_keras: bool) -> None:
        self.scaled_by_keras = scaled_by_keras
        """Only Keras would scale the loss, so that an optimizer for which it doesn't is a problem."""
        self._made: list[keras.Model] = []
        self._built: list[keras.Optimizer] = []
        self._scaled: set[int] = set()
        """Ids of the optimizers for which Keras scales the loss."""
        self._chosen: list[weakref.ref[Any]] = []
        """Layers whose dtype the script set to float32."""
        self._older_scales = False
        """An optimizer of tf_keras scales the loss."""
        self._variables: list[weakref.ref[tf.Variable]] = []
        """All trainable variables."""
        self.has_layers = False
        """The script has made a layer of Keras 3 or tf_keras."""
        self.counters: list[tf.Variable] = []
        """Step counts of optimizers that are not Keras 3's."""
        self.judge: Callable[[Sequence[dict[str, Any]]], None] = lambda reports: None
        """Called once, with a report of the first steps."""
        self.warn: Callable[[str], None] = lambda why: None
        """Called with a reason why nothing will be proved: observing failed."""
        self._judged = False
        self._checks = 0
        self._counters: tuple[Counter[str], Counter[EagerCall]] = (Counter(), Counter())
        """The functions that were executed so far, and the products outside of them."""
        self._first_graphs: list[Any] = []
        """Those that ran before the first judgement. TensorFlow exports each once, and the final report has all."""
        self._evaluated: Counter[str] = Counter()
        """The functions that evaluations executed."""
        self._first_evaluated: set[str] = set()
        """Those of them that nothing had executed before."""
        self._evaluated_graphs: list[Any] = []
        self._evaluating = False
        self._precision: Mechanism | Precision = precision
        super().__init__(self._made, self._built, precision.resolved)
        self.guard = Guard(Diverged, failed=lambda: self.warn(self.guard.problems[0]))
        """Around all that is called while the script runs."""
        self.sessions = Sessions(self._read_session, self._ran_session, self.guard)

    @property
    def precision(self) -> Mechanism | Precision:
        return self._precision

    @precision.setter
    def precision(self, precision: Precision) -> None:
        """The script has made its own, and scales the loss by it."""
        self._precision = precision
        self._resolved = precision.resolved
        self.scaled_by_keras = False

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """The script runs in this context."""
        with contextlib.ExitStack() as stack:
            self.guard.hook(self._begin_observing)(stack)
            try:
                yield
            finally:
                self.conclude()
                with self.guard():
                    stack.close()

    def _begin_observing(self, stack: contextlib.ExitStack) -> None:
        hook = self.guard.hook
        stack.enter_context(once_begun(hook(context.enable_graph_collection)))
        stack.enter_context(after(keras.Model, "__init__", hook(self._made.append)))
        self._observe_library(stack, keras, keras.config.dtype_policy)
        older = hook(lambda library: self._observe_library(stack, library, library.mixed_precision.global_policy))
        stack.enter_context(once_imported("tf_keras", older))
        stack.enter_context(naming_kerass_steps(self.guard))
        stack.enter_context(after(keras.optimizers.Optimizer, "build", hook(self._on_build)))
        stack.enter_context(after(keras.optimizers.LossScaleOptimizer, "__init__", hook(self._on_scaling)))
        stack.enter_context(tf.variable_creator_scope(self._on_variable))
        stack.enter_context(self.sessions.observing())
        stack.enter_context(self._recording(*self._counters, self.guard))

    def conclude(self) -> None:
        """Report the whole run: the script ends."""
        with self.guard():
            self.reports[:] = [] if self.guard.problems else [self._report_so_far()]
        if self.guard.problems:
            self.reports[:] = [self._failed(WHOLE_RUN, self.guard.problems)]

    def steps(self) -> int:
        """Optimizer steps that were applied, of the optimizer with the most."""
        counts = [*(optimizer.iterations for optimizer in self._built), *self.counters]
        return max([self.sessions.steps, *(int(count.numpy()) for count in counts)])

    def counts(self) -> bool:
        """Whether the script's steps are counted: not without an optimizer, and not always in TensorFlow 1's style."""
        return bool(self._built or self.counters or self.sessions.steps)

    def trains_eagerly(self) -> bool:
        """Whether what trains multiplies outside of any graph."""
        return any(call.recorded for call in self._counters[1])

    def _read_session(self, name: str, graph: Any) -> None:
        self._known[name] = graphs.read([graph], self._listed_names(), self._kept_scope())

    def _ran_session(self, name: str) -> None:
        self._counters[0][name] += 1

    def executed(self) -> None:
        """Call it after each execution: judges the run so far, once every optimizer has stepped and there were two
        steps."""
        if self._judged or self._evaluating:
            return
        steps = self.steps()
        self._checks += steps > 0
        self._judged = self._checks == MOST_CHECKS  # judge at the end only
        if steps >= FIRST_STEPS and all(int(optimizer.iterations.numpy()) for optimizer in self._built):
            self._judged = True
            self.judge([{**self._report_so_far(), "grows": True}])

    def _report_so_far(self) -> dict[str, Any]:
        """The report of the run so far. Nothing counts as read after it.

        So a later report has programs that XLA compiles later for functions that ran before.
        """
        executed, eager = Counter(self._counters[0]), Counter(self._counters[1])
        known, programs = dict(self._known), set(self._programs)
        self._first_graphs += super()._exported()
        try:
            report = self._report(executed, eager)
            return {**self._head(WHOLE_RUN, self._parameters()), **report}
        finally:
            self._known, self._programs = known, programs
            super()._exported()  # discards the observer's own arithmetic
            _restore(self._counters[0], executed)
            _restore(self._counters[1], eager)

    def _exported(self) -> list[Any]:
        return [*self._first_graphs, *([] if self._trained() else self._evaluated_graphs), *super()._exported()]

    def _trained(self) -> Counter[str]:
        """The functions that were executed outside of evaluations; none where these can't be told apart."""
        trained = self._counters[0] - self._evaluated
        return Counter() if self._first_evaluated & trained.keys() else trained

    def _apart(self, owner: type[Any], name: str) -> AbstractContextManager[None]:
        """Leave what first runs in this method of Keras's models out of the reports: a script may evaluate in another
        precision than it trains in. It counts where the script does nothing else, or executes it elsewhere too."""
        return observed(owner, name, self.guard, self._before_evaluation, self._after_evaluation)

    def _before_evaluation(self, *args: Any, **kwargs: Any) -> Counter[str] | None:
        if self._evaluating:
            return None
        self._first_graphs += super()._exported()
        self._evaluating = True
        return Counter(self._counters[0])

    def _after_evaluation(self, before: Counter[str], *args: Any, **kwargs: Any) -> None:
        self._evaluating = False
        self._evaluated_graphs += super()._exported()
        self._first_evaluated |= self._counters[0].keys() - before.keys()
        self._evaluated += self._counters[0] - before

    def _begin_to_collect(self) -> None:
        """Not yet: it initialises TensorFlow's devices, and before that a script may choose its strategy over several
        processes, memory growth and the like."""

    def _rank_and_size(self) -> tuple[int, int]:
        return rank_and_size("tensorflow")

    def _observe_library(self, stack: contextlib.ExitStack, library: Any, policy: Callable[[], Any]) -> None:
        """Observe layers and evaluations of Keras 3 or tf_keras, whose global policy is `policy()`."""

        def on_layer(layer: Any) -> None:
            """Note a layer that the script set to float32, by `dtype="float32"`, as is advised for the last layer."""
            self.has_layers = True
            if layer.compute_dtype == "float32" and policy().compute_dtype != "float32":
                setattr(layer, CHOSEN, True)
                self._chosen.append(weakref.ref(layer))

        layer = library.layers.Layer
        stack.enter_context(after(layer, "__init__", self.guard.hook(on_layer)))
        stack.enter_context(naming_chosen_layers(layer, self.guard))
        for name in ("evaluate", "predict"):
            stack.enter_context(self._apart(library.Model, name))

    def _kept(self) -> Collection[str]:
        return self._precision.kept

    def _kept_scope(self) -> str | None:
        return KEPT if self._chosen else super()._kept_scope()

    def _on_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next_creator(**kwargs)
        self.guard.hook(self._note_variable)(variable)
        return variable

    def _note_variable(self, variable: tf.Variable) -> None:
        name = variable.name.split("/")[-1].split(":")[0]
        if variable.trainable and variable.dtype.is_floating:
            self._variables.append(weakref.ref(variable))
        elif tf.executing_eagerly() and not variable.trainable and variable.dtype == tf.int64 and name in COUNTS:
            self.counters.append(variable)  # not of a graph of TensorFlow 1, where only sessions read it
        self._older_scales |= name == OLDER_SCALE

    def _on_build(self, optimizer: keras.Optimizer) -> None:
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer not in self._built:
            self._built.append(optimizer)

    def _on_scaling(self, optimizer: keras.optimizers.LossScaleOptimizer) -> None:
        self._scaled.add(id(optimizer.inner_optimizer))

    def _add_eager(self, ran: Reading, eager: Counter[EagerCall]) -> None:
        """What no tape recorded, as the samples that a generator draws, is left out where something trains: it may run
        in another precision, as an evaluation may."""
        trained = Counter({call: times for call, times in eager.items() if call.recorded})
        trains = bool(trained) or any(call["backward"] for call in ran.every_call())
        super()._add_eager(ran, trained if trains else eager)

    def _report(self, executed: Counter[str], eager: Counter[EagerCall]) -> dict[str, Any]:
        report = super()._report(self._trained() or executed, eager)
        if not self._built and self.steps():
            report["optimizer"] = elements_by_dtype(self._trainable())
        if self.scaled_by_keras:
            unscaled = [f"optimizer {type(made).__name__}" for made in self._built if id(made) not in self._scaled]
            if not self._built and not self._older_scales:
                unscaled = ["its optimizer"]
            if unscaled:
                problem = f"nothing scaled the loss of {unscaled[0]}, and small float16 gradients vanish"
                report["problems"] = [*report["problems"], problem]
        return report

    def _parameters(self) -> list[dict[str, Any]]:
        """The parameters that optimizers step, each once: a model may be part of another, or not be trained.

        In scripts without Keras 3's optimizers, all trainable variables.
        """
        stepped = {id(variable): variable for variable in stepped_by(self._built)}
        if not stepped:
            layers = [layer for reference in self._chosen if (layer := reference()) is not None]
            weights = (weight for layer in layers for weight in layer.trainable_weights)
            kept = {id(weight.value if isinstance(weight, keras.Variable) else weight) for weight in weights}
            return counted(("kept" if id(variable) in kept else "other", variable) for variable in self._trainable())
        groups = {
            id(variable): _group(layer)
            for model in self._made
            for layer in model._flatten_layers()
            for variable in layer._trainable_variables
        }
        return counted((groups.get(number, "other"), variable) for number, variable in stepped.items())

    def _trainable(self) -> list[tf.Variable]:
        alive = [variable for reference in self._variables if (variable := reference()) is not None]
        return list({id(variable): variable for variable in (*alive, *self.sessions.trainable())}.values())


def _restore(counter: Counter[Any], was: Counter[Any]) -> None:
    counter.clear()
    counter.update(was)


def _group(layer: keras.Layer) -> str:
    if type(layer).__name__ in NORMS:
        return "norm"
    return "kept" if getattr(layer, CHOSEN, False) else "other"
