"""Observes the training loop of a user's script: its optimizers show the steps, module calls show the model.

Observed are spans of two optimizer steps, so that a GAN's generator and discriminator are both in one, from the first
forward of a module to the first one after the second step, when `Schedule` says and when `Watch` has seen a change.
Where a step is taken without such a forward, as with a compiled module or none, they are from the end of one step to
the end of another. All are in the thread that takes the first step.

Where no optimizer steps, but weights are written between one backward and the next forward, as by an optimizer of the
script's own, each backward counts as a step.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amp_launcher.around.child_processes import ChildProcesses
from amp_launcher.around.replaced import replaced
from amp_launcher.around.schedule import Schedule
from amp_launcher.loop.divergence import Diverged
from amp_launcher.loop.profiling import Profiling
from amp_launcher.precision.observation import Guard
from amp_launcher.torch.observe import dispatch_observer
from amp_launcher.torch.observe.forward_hook import ForwardHook
from amp_launcher.torch.observe.observed_thread import IN_A_THREAD, TOLD_AT, ObservedThread
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.observe.recording import warm_ups_noted
from amp_launcher.torch.observe.roles import in_backward, in_transform
from amp_launcher.torch.observe.span import Requested, Span, modules_of
from amp_launcher.torch.observe.watch import Watch, graphs, layer_look, weight_look, weight_looks
from amp_launcher.torch.precision.model_checks import several_ranks
from amp_launcher.torch.uncompiled import followed_by, uncompiled

BY_HAND = 4
"""Forwards after which weights were written by hand, and by no optimizer, that show how a script trains."""
MOST_OPERATIONS = 200_000
"""Operations in a span after which observing ends: while torch's profiler records them, each takes 17 KB."""
MOST_IDLE = 10_000
"""So many operations without a backward or a step are an evaluation, a rollout, or of `torch.func`, whose gradients may
belong to no step; not the forward of a step."""
TOO_MANY = f"no step ended within {MOST_OPERATIONS:,} operations: to observe more of them would take too much memory"
NOTHING_STEPPED = (
    "no torch optimizer stepped, and no weights of a called module were written in place after each of several "
    "backwards: torch.func's updates are not seen; a script that resumed what it had finished takes no step"
)


class ScriptObserver:
    """Counts the optimizer steps of a script, and observes some of them."""

    def __init__(self, precision: Requested, profiling: Profiling) -> None:
        self.precision = precision
        self.steps = 0
        """Optimizer steps so far."""
        self.reports: list[dict[str, Any]] = []
        self.judge: Callable[[Sequence[dict[str, Any]]], None] = lambda reports: None
        """Called with all reports after each span."""
        self.warn: Callable[[str], None] = lambda why: None
        """Called with a reason why nothing will be proved: threads take the steps, or observing failed."""
        self.guard = Guard(Diverged, failed=self._fail)
        """Around all that is called while the script runs."""
        self._profiling = profiling
        self._schedule = Schedule()
        self._watch = Watch()
        self._changed_at = 0
        """The first step that showed a change."""
        self._thread = ObservedThread()
        self.children = ChildProcesses()
        self._forward = ForwardHook(self._called, self.guard)
        self._span: Span | None = None
        self._patience = MOST_IDLE
        self._backwards_to_wait = 0
        """After a span was dropped: backwards without an optimizer's step, as of steps by hand, until the next span."""
        self._counts_backwards = False
        """The script steps by hand: each backward is a step."""
        self._ran_backward = False
        self._stepped_in_backward: list[torch.optim.Optimizer] = []
        """The optimizers that stepped in the backward that is running, as by hooks of their weights."""
        self._compiles = False
        """The script has called `torch.compile`, as far as that matters to this torch."""
        self._failed_at = 1
        """The step in which observing failed."""
        self._hooks = contextlib.ExitStack()

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """The script runs in here. A span that an exception ends is not reported."""
        self.guard.hook(self._start)()
        try:
            yield
            self.guard.hook(self._close_last)()
            self.guard.hook(self._add_unseen)()
        finally:
            with self.guard():
                self._stop()
            with self.guard():
                self._add_problems()

    def _start(self) -> None:
        self._hooks.callback(register_optimizer_step_pre_hook(uncompiled(self._steps, self.guard)).remove)
        self._hooks.callback(register_optimizer_step_post_hook(uncompiled(self._stepped, self.guard)).remove)
        if dispatch_observer.missing(compiles=True):  # an observed step would break what compiles in it
            self._hooks.enter_context(replaced(torch, "compile", self._noting_compiler(torch.compile)))
        self._hooks.enter_context(self._forward.hidden())
        self._hooks.enter_context(warm_ups_noted())
        ended = self.guard.hook(self._backward_ended)
        for owner in (graph, torch.autograd):
            run_backward = followed_by(owner._engine_run_backward, ended)
            self._hooks.enter_context(replaced(owner, "_engine_run_backward", run_backward))
        self._forward.wait()

    def _noting_compiler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._compiles = True
            return original(*args, **kwargs)

        return compile

    def _stop(self) -> None:
        """Leave nothing in torch."""
        with contextlib.ExitStack() as stack:  # each, even if another fails
            stack.callback(self._hooks.close)
            stack.callback(self._stop_recording)  # first, so that the profiler's end is noted

    def _stop_recording(self) -> None:
        """End the span and the profiler: a process that exits while torch records it crashes."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._profiling.end, self.steps)
            stack.callback(self._forward.remove)
            span, self._span = self._span, None
            if span is not None:
                stack.callback(span.close)

    def _fail(self) -> None:
        """An error in the observer: nothing more is observed, and nothing will be proved. The optimizers' hooks remain:
        this may be in one of them, while torch iterates over them."""
        self._failed_at = max(1, self.steps)
        with contextlib.ExitStack() as stack:
            stack.callback(self.warn, self.guard.problems[0])
            self._stop_recording()

    def _add_unseen(self) -> None:
        """Report why other steps than the observed ones prove nothing."""
        if self._trained_elsewhere():
            self._add_problem(1, [IN_A_THREAD])
        if self._changed_at and not self._thread.steps_elsewhere:  # a change that no step followed was an evaluation's
            self._add_problem(self._changed_at, [f"{self._watch.change}, which no observed step had"])

    def _add_problems(self) -> None:
        """Report errors of the observer."""
        if self.guard.problems:
            self._add_problem(self._failed_at, self.guard.problems)

    def _add_problem(self, step: int, problems: list[str]) -> None:
        unseen = PrecisionObserver(nn.Module(), self.precision.resolved)
        unseen.add_problems(step, problems)
        self.reports += [{**report, "extra": True} for report in unseen.reports]

    def _close_last(self) -> None:
        """Report the last span if a step was taken in it."""
        if self._span is not None and self.steps >= self._schedule.due:
            self._close()

    def conclude(self) -> None:
        """The script ends its process."""
        if not self._thread.is_elsewhere():
            self.guard.hook(self._close_last)()
        with self.guard():
            self._add_problems()

    def unseen(self) -> str:
        """Why no step was seen, for the end of a sentence that says so."""
        return f"; {self.children.told() or NOTHING_STEPPED}"

    def trained_nothing(self) -> bool:
        """Whether nothing can have been trained by torch: no optimizer stepped, and no gradient was computed."""
        return not (self.steps or self._ran_backward or self.guard.problems or self.children.told())

    def slows_down(self) -> bool:
        """Whether steps are observed or profiled at the moment."""
        return self._span is not None or self._profiling.running

    def _trained_elsewhere(self) -> bool:
        """Whether other threads trained. Where only the optimizer is stepped in one, gradients were observed."""
        backward = any(call["backward"] for report in self.reports for call in report["calls"])
        return 0 < self.steps == self._thread.steps_elsewhere and not backward

    def _steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._span is not None and (not self._span.after_step or not self._thread.is_elsewhere()):
            self._span.before_optimizer(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        self.children.stepped()
        self._counts_backwards, self._backwards_to_wait = False, 0
        elsewhere = self._thread.step(self.steps, nothing_observed=self._span is None and not self.reports)
        if self.steps == TOLD_AT and self._trained_elsewhere():
            self.warn(IN_A_THREAD)
        if self._span is not None and not elsewhere:
            self._span.note_shards()
        if self._span is not None and (not self._span.after_step or not elsewhere):
            self._span.after_optimizer(optimizer)
        if in_backward():  # which undoes what begins or ends in it
            self._stepped_in_backward.append(optimizer)
        else:
            self._ended(optimizer, elsewhere)

    def _ended(self, optimizer: torch.optim.Optimizer, elsewhere: bool, count: int = 1) -> None:
        """So many steps have ended, of which the last was this optimizer's."""
        if self._span is None or self._profiling.running:  # one profiler at a time
            self._profiling.after(self.steps)
            self._profiling.before(self.steps + 1, count)
        if not elsewhere:
            self._look_at(optimizer)
        ends = self._span is not None and self.steps >= self._span.last
        begins = self._span is None and not self._profiling.running and self.steps + 1 >= self._schedule.due
        if not self._forward.waits and (ends or begins) and (self._span is None or not self._span.after_step):
            self._forward.wait()
        elif (ends or begins) and not elsewhere:
            self._move_on_after(optimizer, ends)
            if ends and self._span is None:
                self._judge()

    def _look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """Look for a change in the step that has ended, and ask for an observed one."""
        if self._span is not None:
            for look in weight_looks(optimizer):
                self._watch.learn(look)
            return
        if self._forward.looks:
            self._watch.compare(weight_look(optimizer, self.steps))
            self._forward.stop_looking()
        compiled = graphs()
        if self._watch.change:
            self._changed_at = self._changed_at or self.steps
            self._schedule.ask(self.steps)
        elif self._watch.recompiled(compiled):
            self._schedule.ask(self.steps)
            self._watch.learn_graphs()
        if not compiled and not self._profiling.running and self._schedule.looks(self.steps):
            self._forward.look()

    def _called(self, module: nn.Module, inputs: Any) -> None:
        if (self._span is not None or self._forward.looks) and not self._thread.is_elsewhere():
            (self._watch.compare if self._span is None else self._watch.learn)(layer_look(module, inputs))
        if self._forward.waits and self._move_on(module):
            self._judge()

    def _judge(self) -> None:
        """A span has ended: judging it is a part of its cost."""
        if threading.current_thread() is threading.main_thread():  # another can't end the script
            self.judge(self.reports)
        self._schedule.end(self.steps)

    def _move_on_after(self, optimizer: torch.optim.Optimizer, ends: bool) -> None:
        """A step has ended, and no forward has shown where it began."""
        if not ends:
            self._schedule.due = self.steps + 1
            self._schedule.begin(self.steps)
            due = self._schedule.due
            self._span = Span(nn.Module(), self.precision, due, after_step=True, compiles=self._compiles)
            for module in modules_of(optimizer):
                self._span.add(module)
        elif self._span is not None and self._span.after_step and not torch.is_inference_mode_enabled():
            self._close()
            self._forward.stop_waiting()

    def _move_on(self, module: nn.Module) -> bool:
        """Begin or end a span if one is due. Returns whether one has ended."""
        if in_backward():
            return False
        if self._thread.is_elsewhere():  # a data loader's process has modules too
            return False
        if self._span is not None:
            self._span.called()
            if self._span.by_hand >= BY_HAND and not self._counts_backwards:
                self.steps += self._span.by_hand
                self._counts_backwards = True
            elif self._span.operations() >= MOST_OPERATIONS:
                self._give_up()
                return True
            if self._span.idle() >= self._patience and (self.steps >= self._span.first or not several_ranks()):
                self._span.rest()
            # In inference mode the end of a dispatch mode would be undone where inference mode ends.
            if torch.is_inference_mode_enabled() or not (self._span.rests or self.steps >= self._span.last):
                self._span.add(module)
                return False
            return self._end_span(trains=module.training and torch.is_grad_enabled())
        if torch.is_grad_enabled() and not self._profiling.running and self.steps + 1 >= self._schedule.due:
            self._schedule.due = self.steps + 1
            self._schedule.begin(self.steps)
            self._span = Span(module, self.precision, self._schedule.due, compiles=self._compiles)
            self._watch.learn(layer_look(module, ()))
        return False

    def _end_span(self, trains: bool) -> bool:
        """Report it, or drop it where it rests and saw no step: the next begins after the step. Returns whether it is
        reported."""
        assert self._span is not None
        if self._span.rests:
            self._patience *= 2
        if self.steps >= self._span.first:
            self._close(trains)
            self._forward.stop_waiting()
            return True
        self._drop(until=self.steps + 2)
        self._backwards_to_wait = BY_HAND
        return False

    def _backward_ended(self, of_weights: bool) -> None:
        self._ran_backward = True
        if is_dynamo_compiling() or self._thread.is_elsewhere() or in_transform():
            return
        if self._span is not None:
            self._span.backward_ended()
        if self._stepped_in_backward and not in_backward():
            optimizers, self._stepped_in_backward = self._stepped_in_backward, []
            self._ended(optimizers[-1], elsewhere=False, count=len(optimizers))
        if self._backwards_to_wait:
            self._backwards_to_wait -= 1
            if not self._backwards_to_wait:
                self._schedule.due = self.steps + 1
                self._forward.wait()
        if not of_weights or not self._counts_backwards:
            return
        self.steps += 1
        if self._span is None and not self._profiling.running and self.steps + 1 >= self._schedule.due:
            self._forward.wait()

    def _give_up(self) -> None:
        """Nothing more is observed: the steps are too long, or there is none."""
        self._drop(until=sys.maxsize)
        self._add_problem(self.steps + 1, [TOO_MANY])

    def _drop(self, until: int) -> None:
        """End the span without a report; the next is due at step `until`."""
        assert self._span is not None
        self._span.close()
        self._span = None
        self._schedule.due = until
        self._forward.stop_waiting()

    def _close(self, trains: bool = False) -> None:
        assert self._span is not None
        self._span.close(trains)
        more: dict[str, Any] = {"steps": max(1, self.steps - self._span.first + 1)}
        if self._schedule.spans > 1:
            more["extra"] = True
        self.reports += [{**report, **more} for report in self._span.reports]
        self._span = None
        self._watch.observed()
        self._changed_at = 0
