"""Autocast around each step of a script that knows nothing of it: as if it were written around forward and loss.

It begins where a step's first module, or compiled function with a module in it, is called, and ends where backward, an
optimizer's step or, for what was computed without gradients, the block without gradients ends. `torch.autograd.grad`
that keeps its graph, as of a gradient penalty, interrupts it. All of it is in each thread on its own.

Autocast's cache of cast weights is as it is by hand: weights that several forwards of a step share are cast once, and
the cache is empty where a step begins. Weights may change within a region in which nothing is trained, as where an
evaluation swaps averages in, so that each forward of it casts anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils.data import get_worker_info

from amp_launcher.around.replaced import replaced
from amp_launcher.torch.compiled_functions import CompiledFunction
from amp_launcher.torch.observe.modules import first_weight, weights_of
from amp_launcher.torch.uncompiled import is_traced, passed_over

_READ = 32
"""Bytes of a weight on a CPU that tell whether it was changed through `.data`, which no version counts."""
_Read = ctypes.c_char * _READ
"""To read so many by: `string_at` takes three times as long."""


class _Region(threading.local):
    """Autocast in this thread."""

    context: torch.autocast | None = None
    """Ours, while it is on."""
    nesting = 0
    """The number of contexts around that enable or disable it on our device, with ours."""
    inside = False
    """A module or compiled function that was called from outside is running."""
    compiled = False
    """A compiled function is running; its graphs are modules too, whatever it computes."""
    evaluates = False
    """Nothing was called so far that trains."""
    without_gradients = False
    """It was begun where gradients are disabled, and ends with that."""
    covered = False
    """A module was called in the script's own autocast; ours begins when that ends."""
    begun = False
    """A module was called since the last optimizer's step."""
    went_back = False
    """A backward ran since then; several optimizers may step by one."""
    ends_later = False
    """It has to end, but the script has opened its own autocast in it, which has to end first."""
    stamps: dict[int, Any]
    """What the modules' weights were like when they were first called: id of the module -> `_stamp`."""


class AutocastAround:
    """Autocast in `dtype` on `device`, around the steps of the script that runs in `applied`."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._region = _Region()
        self.switched_off = False
        """Whether a module was called in an autocast of the script's own that was off."""
        self.called_in_backward = False
        """Whether a module was called in backward in no autocast; a checkpoint calls it in that of its forward."""
        self.began_late = False
        """Whether a step's forward began in a `forward` that was called directly, or was no module's."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The script runs in here."""
        before_step = register_optimizer_step_pre_hook(self._before_step)
        run_backward = self._around_backward(graph._engine_run_backward)
        call = self._around_call(nn.Module.__call__)
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(before_step.remove)
            for owner, name, value in (
                (nn.Module, "__call__", call),
                (graph, "_engine_run_backward", run_backward),
                (torch.autograd, "_engine_run_backward", run_backward),
                (torch, "compile", self._around_compile(torch.compile)),
                (torch.autocast, "__enter__", self._around_enter(torch.autocast.__enter__)),
                (torch.autocast, "__exit__", self._around_exit(torch.autocast.__exit__)),
                (torch.set_grad_enabled, "__init__", self._around_switch(torch.set_grad_enabled.__init__)),
                (torch.inference_mode, "__exit__", self._after(torch.inference_mode.__exit__, self._after_switch)),
                (checkpoint, "_get_autocast_kwargs", self._around_checkpoint(checkpoint._get_autocast_kwargs)),
                (torch.Tensor, "numpy", _as_float32(torch.Tensor.numpy)),
            ):
                stack.enter_context(replaced(owner, name, value))
            yield

    def _around_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or region.inside or not self._begin(module):
                return original(module, *args, **kwargs)
            try:
                return original(module, *args, **kwargs)
            except BaseException:
                self._close()
                raise
            finally:
                region.inside = False

        return passed_over(call)

    def _around_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.compile`, whose functions begin a step as modules do: in them no call of a module can be noticed."""

        @functools.wraps(original)
        def compile(model: Any = None, **kwargs: Any) -> Any:
            compiled = original(model, **kwargs)
            if model is None or isinstance(model, (nn.Module, type)) or not callable(compiled):
                return compiled
            return self._around_compiled(compiled, model)

        return compile

    def _around_compiled(self, compiled: Callable[..., Any], written: Callable[..., Any]) -> Callable[..., Any]:
        region, function = self._region, CompiledFunction(written)

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or region.inside:
                return compiled(*args, **kwargs)
            before, region.compiled = region.compiled, True
            begun = function.calls_module(args) and self._begin(None)
            try:
                return compiled(*args, **kwargs)
            finally:
                region.compiled = before
                if begun:
                    region.inside = False

        return passed_over(call)

    def _around_checkpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What a checkpoint notes of autocast before its modules are called, and computes them again with."""

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if not self._region.inside and self._begin(None):
                self._region.inside = False
            return original(*args, **kwargs)

        return noted

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        region = self._region

        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            keeps_graph = bool(args[2]) and not kwargs.get("accumulate_grad", True)
            goes_on = region.inside or (keeps_graph and torch._C._functorch.peek_interpreter_stack() is None)
            before = region.context, region.inside, region.evaluates, region.without_gradients
            self._close()
            closed = before[0] is not None and region.context is None
            region.inside = before[1]
            region.went_back = True
            result = original(*args, **kwargs)
            if closed and goes_on:
                self._open()
                _, region.inside, region.evaluates, region.without_gradients = before
            return result

        return passed_over(run_backward)

    def _around_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of each autocast, the script's and ours. One for another device decides nothing here."""
        region, device = self._region, self._device

        @functools.wraps(original)
        def __enter__(context: torch.autocast) -> Any:
            entered = original(context)
            if context.device == device and not is_dynamo_compiling():
                region.nesting += 1
            return entered

        return passed_over(__enter__)

    def _around_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        region, device = self._region, self._device
        after_own = self._after(original, self._after_own)

        @functools.wraps(original)
        def __exit__(context: torch.autocast, *error: Any) -> Any:
            if context.device == device and not is_dynamo_compiling():
                region.nesting -= 1
            return after_own(context, *error)

        return passed_over(__exit__)

    def _after(self, original: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
        region = self._region

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not is_dynamo_compiling() and (region.context is not None or region.covered):
                then()
            return result

        return passed_over(method)

    def _around_switch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same of `set_grad_enabled`, which each optimizer's step calls several times."""
        region = self._region

        @functools.wraps(original)
        def __init__(switch: torch.set_grad_enabled, mode: bool) -> None:
            original(switch, mode)
            if not is_dynamo_compiling() and (region.context is not None or region.covered):
                self._after_switch()

        return passed_over(__init__)

    def _begin(self, module: nn.Module | None) -> bool:
        """A module or function is called from outside. Whether that is in a region of ours."""
        region = self._region
        if is_compiling() or is_traced():
            return False  # recorded, not computed
        if torch._C._current_graph_task_id() != -1:  # computed again, by a checkpoint in the autocast of its forward
            self.called_in_backward = self.called_in_backward or not torch.is_autocast_enabled(self._device)
            return False
        if region.compiled and isinstance(module, torch.fx.GraphModule):
            return False
        region.begun = True
        trains = torch.is_grad_enabled() and (module is None or module.training)
        if region.context is not None:
            region.evaluates &= not trains
            if region.evaluates or self._has_changed(module):
                torch.clear_autocast_cache()
        elif region.nesting:
            region.covered = True
            self.switched_off = self.switched_off or not torch.is_autocast_enabled(self._device)
            return False
        elif get_worker_info() is not None:
            return False  # the transforms of a data loader
        else:
            self._open()
            self.began_late = self.began_late or _is_in_forward(sys._getframe(2))
            region.evaluates, region.without_gradients = not trains, not torch.is_grad_enabled()
            self._has_changed(module)
        region.inside = True
        return True

    def _has_changed(self, module: nn.Module | None) -> bool:
        """Whether a weight of the module has changed since it was first called in this region."""
        if module is None:
            return False
        if torch._C._len_torch_function_stack():
            with torch._C.DisableTorchFunction():  # the script's modes see its own calls alone
                stamp = _stamp(module)
        else:
            stamp = _stamp(module)
        return self._region.stamps.setdefault(id(module), stamp) != stamp

    def _open(self) -> None:
        self._region.stamps = {}
        self._region.context = torch.autocast(self._device, dtype=self._dtype)
        self._region.context.__enter__()

    def _close(self) -> None:
        region = self._region
        region.covered = region.inside = False
        if region.context is None:
            return
        region.ends_later = region.nesting > 1
        if not region.ends_later:
            context, region.context = region.context, None
            context.__exit__(None, None, None)
            torch.clear_autocast_cache()  # which torch keeps within an autocast for another device

    def _after_own(self) -> None:
        """The script's own autocast has ended; or ours."""
        region = self._region
        if region.context is not None and region.ends_later and region.nesting == 1:
            self._close()
        elif region.context is None and region.covered and not region.nesting:
            region.covered = False
            self._open()
            region.without_gradients = not torch.is_grad_enabled()
            region.evaluates = region.without_gradients

    def _after_switch(self) -> None:
        """Gradients have been enabled or disabled."""
        region = self._region
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            if region.context is not None and region.without_gradients and not region.inside:
                self._close()
            elif region.covered and region.context is None and not region.nesting:
                region.covered = False

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():
            region = self._region
            self.began_late = self.began_late or (region.went_back and not region.begun)
            region.begun = region.went_back = False
            self._close()


def _is_in_forward(caller: types.FrameType) -> bool:
    return caller.f_code.co_name == "forward" and isinstance(caller.f_locals.get("self"), nn.Module)


def _stamp(module: nn.Module) -> tuple[Any, ...]:
    """What is other once the module's first weight was changed: the cost of all of them would show."""
    weight = first_weight(module)
    if weight is None or type(weight) not in (torch.Tensor, nn.Parameter):  # a subclass may do anything when asked
        return ()
    try:
        stamp = (
            id(weight),
            weight._version,
            torch._C.TensorBase.data_ptr(weight),
        )  # no method of it, which is observed
    except RuntimeError:  # without memory, as in `torch.func`, or made in inference mode
        return (id(weight),)
    if not weight.is_cpu:
        return stamp
    left = weight.nbytes
    if not weight.is_contiguous():  # its values may lie apart, or be one
        left = weight.untyped_storage().nbytes() - weight.storage_offset() * weight.element_size()
    if left < _READ:
        return (*stamp, ctypes.string_at(stamp[-1], left))
    return (*stamp, _Read.from_address(stamp[-1]).raw)


def _as_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.numpy`, which gives bfloat16 as float32: NumPy has no bfloat16, and a script that runs in float32 alone
    expects none."""

    @functools.wraps(original)
    def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(tensor.float() if tensor.dtype == torch.bfloat16 else tensor, *args, **kwargs)

    return numpy


for _function in (
    *vars(AutocastAround).values(),
    *vars(CompiledFunction).values(),
    _is_in_forward,
    _stamp,
    first_weight,
    weights_of,
):
    if isinstance(_function, types.FunctionType):
        passed_over(_function)
