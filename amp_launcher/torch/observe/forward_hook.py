"""A hook on all modules that sees which one a script calls, while something waits for that: no other step is slower."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.nn.modules.module import register_module_forward_pre_hook

from amp_launcher.around.replaced import replaced
from amp_launcher.precision.observation import Guard
from amp_launcher.torch.observe.watch import graphs
from amp_launcher.torch.uncompiled import is_traced


class ForwardHook:
    """Calls `called` with each module and its inputs, under `guard`, as long as it waits or looks."""

    def __init__(self, called: Callable[[nn.Module, Any], None], guard: Guard) -> None:
        self.waits = False
        """A span is about to begin or end."""
        self.looks = False
        """This step is looked at for a change."""
        self._called, self._guard = guard.hook(called), guard
        self._handle: Any = None

    def hidden(self) -> contextlib.AbstractContextManager[Any]:
        """While open, torch doesn't warn of this hook where it calls a compiled module."""
        if not hasattr(hooks_of_all, "_has_any_global_hook"):  # before torch 2.5
            return contextlib.nullcontext()
        return replaced(hooks_of_all, "_has_any_global_hook", self._guard.hook(self._others_hook_modules))

    def wait(self) -> None:
        """For the forward with which a span begins or ends."""
        self.waits = True
        self._add()

    def stop_waiting(self) -> None:
        """The hook stays where something was compiled with it, which would be compiled anew without it."""
        self.waits = False
        if not graphs():
            self.remove()

    def look(self) -> None:
        """At the modules of the next step."""
        self.looks = True
        self._add()

    def stop_looking(self) -> None:
        """The step has ended."""
        self.looks = False
        if not self.waits:
            self.stop_waiting()

    def remove(self) -> None:
        """Leave nothing in torch."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _add(self) -> None:
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._before_forward)

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not (self.waits or self.looks) or is_traced():
            return  # before anything that the compiler can't trace, which would cut the user's graph here for good
        if torch._C._len_torch_function_stack():
            with torch._C.DisableTorchFunction():  # the script's modes see its own calls alone
                self._called(module, inputs)
        else:
            self._called(module, inputs)

    def _others_hook_modules(self) -> bool:
        """Whether the script has hooks on all modules, of which torch warns where it calls a compiled one."""
        return bool(
            len(hooks_of_all._global_forward_pre_hooks) > (self._handle is not None)
            or hooks_of_all._global_backward_pre_hooks
            or hooks_of_all._global_backward_hooks
            or hooks_of_all._global_forward_hooks
        )
