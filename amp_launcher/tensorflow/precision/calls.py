"""The calls of a training loop, the same in every mode.

precision = Precision("o2")                                   # the launcher's request wins where there is one
model, optimizer = precision.prepare(make_model, keras.optimizers.Adam())   # a function that makes the model

@tf.function                                                  # o1 rewrites graphs: it needs one
def train(inputs, labels):
    with precision:                                           # forward and loss
        loss = loss_fn(labels, model(inputs, training=True))
    precision.backward(loss)                                  # loss / k where k micro-batches make a step
    precision.step(optimizer, clip=1.0)                       # average over replicas, unscale, clip, skip on overflow

or, after `prepare`, Keras's own `model.compile(optimizer, ...)` and `model.fit(...)`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.precision import listeners
from amp_launcher.precision.calls import Calls, refuse_clip, say_mode
from amp_launcher.precision.levels import Amp, LossScale, amp_named, scale_named
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.spec import SPEC, read_spec
from amp_launcher.tensorflow.hardware import kind_of
from amp_launcher.tensorflow.precision.base import Mechanism
from amp_launcher.tensorflow.precision.call_checks import refuse_loss, refuse_other_models
from amp_launcher.tensorflow.precision.gradients import Gradient, add
from amp_launcher.tensorflow.precision.keras_training import Steps, cast_calls, prepare_compile
from amp_launcher.tensorflow.precision.loss_scale import LossScaler, SavedScale
from amp_launcher.world.world import rank_and_size

_prepared: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models and optimizers, by whichever `Precision` of this process."""


class _Iteration(threading.local):
    """Where the calls of one thread are. Each replica of a `tf.distribute` strategy is a thread."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, graph: tf.Graph | None) -> None:
        self.graph = graph
        """That of the calls; None is eager execution. Tensors of one graph are of no use in another."""
        self.block: AbstractContextManager[tf.GradientTape] | None = None
        self.tape: tf.GradientTape | None = None
        """That of the last block."""
        self.gradients: dict[keras.Optimizer, list[Gradient | None]] = {}
        """Sums over the backwards since each optimizer's last step."""
        self.unnamed: set[keras.Optimizer] = set()
        """Those whose gradients are of a loss that named no optimizer."""
        self.stepped: set[keras.Optimizer] = set()
        """Since the loss scale was moved."""


class Precision(Calls):
    """A precision mode of a training loop.

    `resolved` has every setting; `level`, `dtype` (float32 at o0) and `device` (cpu or cuda) repeat what scripts need.
    """

    resolved: ResolvedPrecision
    level: str
    dtype: str
    device: str

    def __init__(
        self,
        mode: str | Amp | None = None,
        *,
        loss_scale: str | LossScale = "auto",
        tf32: bool | None = None,
        xla: bool = False,
        device: str = "auto",
    ) -> None:
        """A level, as "o2", or a mode's name, as "bf16-mixed"; `Amp` has more settings. `device` is auto, cpu or cuda;
        `xla` says that `tf.function(jit_compile=True)` compiles the calls. Under the launcher all five are what was
        asked there. Make it in the scope of your `tf.distribute` strategy. Sets TensorFlow's TF32 switch and graph
        rewrites for the whole process.

        Raises `SettingsError` for an unknown mode, and for what can't be had on the device.
        """
        environ = os.environ
        if environ.get(SPEC):
            asked = read_spec(environ, "tensorflow")
            amp, scale, tf32, xla, device = asked.amp, asked.loss_scale, asked.tf32, asked.xla, asked.device
        else:
            amp, tf32 = (mode, tf32) if isinstance(mode, Amp) else amp_named(mode or Amp().level, tf32)
            scale = loss_scale if isinstance(loss_scale, LossScale) else scale_named(loss_scale)
        self._start(Mechanism.of(amp, scale, kind_of(device), tf32=tf32, xla=xla, environ=environ))
        if mode is None and not environ.get(SPEC) and rank_and_size("tensorflow")[0] == 0:
            say_mode(amp.asked, self.dtype, self.device)
        listeners.tell(self)

    def _start(self, mechanism: Mechanism) -> None:
        self._mechanism: Mechanism = mechanism
        self.resolved, self.level = mechanism.resolved, mechanism.level
        self.dtype, self.device = mechanism.dtype, mechanism.device
        self._models: list[keras.Model] = []
        self._steps: dict[keras.Optimizer, Steps] = {}
        """Of each prepared optimizer."""
        self._iteration = _Iteration()

    # The calls

    def prepare(self, *objects: keras.Model | Callable[[], keras.Model] | keras.Optimizer) -> Any:
        """The models and optimizers: one by itself, several as a tuple, in the order given.

        A model is given as the function that makes it, with its variables built, since Keras chooses dtypes as it makes
        layers; or as it is, where its layers have the mode's dtypes, as at o0 and o1. An optimizer steps all models in
        front of it, back to the optimizer before; one that is built steps what it was built for. Raises `RuntimeError`
        for a model of other dtypes, what is prepared already, and another model's optimizer; `SettingsError` for
        patterns of `amp.keep_fp32` that match no layer.
        """
        if not objects:
            raise TypeError("precision.prepare takes functions that make models, and optimizers, and was given nothing")
        for given in objects:
            if not isinstance(given, keras.Optimizer) and not callable(given):
                raise TypeError(
                    "precision.prepare takes functions that make models, and optimizers of Keras 3, and was given "
                    f"{type(given).__name__}"
                )
            self._refuse_prepared(given)
        results: list[Any] = []
        stepped: list[keras.Model] = []
        for given in objects:
            if isinstance(given, keras.Optimizer):
                self._prepare_optimizer(given, stepped)
                results, stepped = [*results, given], []
            else:
                model = self._prepare_model(given)
                results, stepped = [*results, model], [*stepped, model]
        return results[0] if len(results) == 1 else tuple(results)

    def _prepare_model(self, given: keras.Model | Callable[[], keras.Model]) -> keras.Model:
        if isinstance(given, keras.Model):
            model = given
            self._mechanism.adopt(model)
        else:
            model = self._mechanism.cast(given)
            self._refuse_prepared(model)
        cast_calls(model, self._mechanism)
        prepare_compile(model, self._mechanism, self._steps_of)
        self._models.append(model)
        _prepared.add(model)
        return model

    def _prepare_optimizer(self, optimizer: keras.Optimizer, models: list[keras.Model]) -> None:
        if optimizer.built:
            refuse_other_models(optimizer, self._models)
            variables = list(optimizer._trainable_variables)
        else:
            variables = [variable for model in models for variable in model.trainable_variables]
        if not variables:
            raise RuntimeError(
                "an optimizer comes after its model: call precision.prepare(make_model, optimizer); where several step "
                "parts of one model, call optimizer.build(variables) for each before"
            )
        self._mechanism.optimizer(variables, optimizer)
        scaler = self._mechanism.scaler(optimizer)
        if isinstance(scaler, LossScaler):
            optimizer.loss_scale = SavedScale(scaler)
        self._steps[optimizer] = Steps(self._mechanism, optimizer)
        _prepared.add(optimizer)

    def _refuse_prepared(self, given: Any) -> None:
        if isinstance(given, (keras.Model, keras.Optimizer)) and given in _prepared:
            kind = "model" if isinstance(given, keras.Model) else "optimizer"
            raise RuntimeError(f"this {kind} is prepared already: call precision.prepare(make_model, optimizer) once")

    def _steps_of(self, optimizer: Any) -> Steps | None:
        return self._steps.get(optimizer) if isinstance(optimizer, keras.Optimizer) else None

    def __enter__(self) -> Precision:
        """Everything from the model's inputs to the loss goes into the block; backward and step don't."""
        now, graph = self._iteration, _graph()
        if now.block is not None and now.graph is graph:
            raise RuntimeError("`with precision:` is inside of another one: end that first")
        if graph is None and self.level == "o1":
            raise RuntimeError("o1 rewrites graphs, and here is none: put `with precision:` into a @tf.function")
        if now.graph is not graph:
            if now.gradients and _encloses(now.graph, graph):
                raise RuntimeError(
                    "precision.backward(loss) came before this tf.cond, tf.while_loop or inner function, and its "
                    "gradients can't be added to in there: end with precision.step(optimizer) before"
                )
            now.begin(graph)
        if len(self._steps) > 1 and not now.stepped and not now.gradients:
            self._mechanism.update()  # for what stepped in an earlier call; moves nothing where that is done
        pending = [gradient for gradients in now.gradients.values() for gradient in gradients]
        block = self._mechanism.forward(after=pending)
        now.tape = block.__enter__()
        now.block = block
        return self

    def __exit__(self, *error: Any) -> None:
        block, self._iteration.block = self._iteration.block, None
        if block is not None:
            block.__exit__(*error)

    @tf.autograph.experimental.do_not_convert
    def backward(self, loss: tf.Tensor, *optimizers: keras.Optimizer) -> None:
        """Compute the gradients of the scaled loss, added to those of earlier backwards since the last step.

        `loss` is a float32 scalar of the last `with precision:`, already divided by the number of micro-batches.
        `optimizers` are those that step by it, where there are several and not all do.
        """
        now = self._iteration
        self._refuse_within("backward(loss)")
        refuse_loss(loss)
        if not self._steps:
            raise RuntimeError("precision.backward(loss) comes after precision.prepare(make_model, optimizer)")
        if now.tape is None or now.graph is not _graph():
            raise RuntimeError(
                "precision.backward(loss) comes after `with precision:` around the forward and the loss, in the same "
                "function"
            )
        for optimizer in optimizers:
            self._refuse_unprepared(optimizer, "backward(loss, optimizer)")
        chosen = optimizers or tuple(self._steps)
        for optimizer in chosen:
            if optimizer in now.unnamed and now.stepped - {optimizer}:
                raise RuntimeError(
                    "the loss of an earlier backward reached weights of an optimizer that has not stepped since: say "
                    "whose loss each is, as precision.backward(loss, optimizer), or step both, as precision.step(a, b)"
                )
        if not now.stepped.isdisjoint(chosen):
            self._move_scale()
        groups = [[optimizer] for optimizer in chosen] if self.resolved.loss_scale.per_optimizer else [[*chosen]]
        reached = False
        for group in groups:
            for optimizer, gradients in zip(group, self._mechanism.gradients(now.tape, loss, group), strict=True):
                if all(gradient is None for gradient in gradients):
                    continue
                reached = True
                before = now.gradients.get(optimizer) or [None] * len(gradients)
                now.gradients[optimizer] = [add(*pair) for pair in zip(before, gradients, strict=True)]
                if not optimizers and len(chosen) > 1:
                    now.unnamed.add(optimizer)
        if not reached:
            raise RuntimeError(
                "the loss depends on no weight that is stepped: compute it, with the forward, in the last "
                "`with precision:` before precision.backward(loss)"
            )

    @tf.autograph.experimental.do_not_convert
    def step(self, *optimizers: keras.Optimizer, clip: float | None = None) -> StepOutcome:
        """Average the gradients over the replicas, unscale, clip, and step each optimizer unless its gradients
        overflowed; the loss scale follows, once all optimizers have stepped.

        `clip` is the largest norm of all gradients of these optimizers together; one overflow skips all of them then.
        """
        now = self._iteration
        self._refuse_within("step(optimizer)")
        if not optimizers:
            raise TypeError("precision.step() needs the optimizers that step: write precision.step(optimizer)")
        refuse_clip(clip, tf.Tensor)
        for optimizer in optimizers:
            self._refuse_unprepared(optimizer, "step(optimizer)")
        optimizers = tuple(dict.fromkeys(optimizers))
        for optimizer in optimizers:
            if optimizer not in now.gradients or not _encloses(now.graph, _graph()):
                raise RuntimeError(
                    "precision.step(optimizer) comes after precision.backward(loss), in the same function and not "
                    "behind a loop of tensors that has it; there was none since this optimizer's last step"
                )
        steps = [(optimizer, now.gradients.pop(optimizer), self._steps[optimizer].apply) for optimizer in optimizers]
        outcome = self._mechanism.step_all(steps, clip)
        now.unnamed.difference_update(optimizers)
        now.stepped.update(optimizers)
        if now.stepped.issuperset(self._steps):
            self._move_scale()
            now.tape = None
        return outcome

    def _move_scale(self) -> None:
        self._mechanism.update()
        self._iteration.stepped.clear()

    def _refuse_within(self, call: str) -> None:
        if self._iteration.block is not None and self._iteration.graph is _graph():
            raise RuntimeError(f"precision.{call} is inside `with precision:`: end the block first")

    def _refuse_unprepared(self, optimizer: Any, call: str) -> None:
        if not isinstance(optimizer, keras.Optimizer):
            raise TypeError(
                f"precision.{call} takes optimizers, one after another, and was given {type(optimizer).__name__}"
            )
        if optimizer not in self._steps:
            raise RuntimeError(
                f"precision.{call} comes after model, optimizer = precision.prepare(make_model, optimizer), and this "
                "optimizer isn't prepared by it"
            )

    # What else a script may ask

    def state_dict(self) -> dict[str, Any]:
        """Level, and loss scale with its counts. What `tf.train.Checkpoint` and Keras save of an optimizer has the
        scale too: a script that saves model and optimizer resumes bit for bit."""
        return self._mechanism.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. Raises `SettingsError` for one of another level, dtype or loss scale."""
        self._mechanism.load_state_dict(state)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the layers that `amp.keep_fp32` keeps in float32."""
        return self._mechanism.kept


def precision_of(mechanism: Mechanism) -> Precision:
    """The calls over a mechanism, as a recipe's is."""
    precision = Precision.__new__(Precision)
    precision._start(mechanism)
    return precision


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _encloses(outer: tf.Graph | None, graph: tf.Graph | None) -> bool:
    """Whether a tensor of `outer` can be used in `graph`: it is that graph, or one around it."""
    while graph is not None and graph is not outer:
        graph = getattr(graph, "outer_graph", None)
    return graph is outer
