"""The levels that do something: o1, o2 and o3 as small variations of `Precision`."""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from recipes.torch_.cast import NORMS, floats_to, matching, to_dtype
from recipes.torch_.distributed_guard import (
    refuse_late_cast,
    refuse_sharded,
    refuse_wrapped,
    same_on_all_ranks,
    several_ranks,
)
from recipes.torch_.float32 import compute_in_float32
from recipes.torch_.masters import Masters
from recipes.torch_.operations import OperationLists, refuse_unreachable
from recipes.torch_.precision import Precision, StepOutcome


class Autocast(Precision):
    """o1: the model stays float32, and each operation runs in the dtype that the operation lists give it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._lists = None
        if self.allow or self.deny:
            self._lists = OperationLists(self.allow, self.deny, self.dtype, self.device.type)
        self._cast: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._stepping = False

    def cast(self, model: nn.Module) -> nn.Module:
        refuse_wrapped(model)
        self.kept = matching(model, self.amp.keep_fp32)
        kept = [model.get_submodule(name) for name in self.kept]
        refuse_unreachable(model, kept, self.allow, self.deny)
        self._convert(model, kept)
        self._cast.add(model)
        return model

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type)

    def optimizer(self, model: nn.Module, optimizer: Optimizer) -> Optimizer:
        if not any(module in self._cast for module in model.modules()):
            raise RuntimeError("precision.optimizer(model, ...) comes after precision.cast(model)")
        refuse_late_cast(model)
        optimizer.register_step_pre_hook(self._refuse_direct_step)
        return optimizer

    def _refuse_direct_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepping:
            raise RuntimeError(
                "optimizer.step() would skip unscaling and the master weights; call precision.step(optimizer)"
            )

    def forward(self) -> AbstractContextManager[Any]:
        autocast = torch.autocast(self.device.type, dtype=self.dtype)
        return autocast if self._lists is None else _both(autocast, self._lists)

    def step(self, optimizer: Optimizer, clip: float | None = None) -> StepOutcome:
        self._stepping = True
        try:
            return super().step(optimizer, clip)
        finally:
            self._stepping = False


class HalfModelNoMasters(Autocast):
    """o2 with amp.master_weights=false: half-precision model with float32 norms, and autocast on."""

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        super()._convert(model, kept)
        norms = [module for module in model.modules() if isinstance(module, NORMS)]
        to_dtype(model, self.dtype, [*kept, *norms])


class HalfModelFloat32Masters(HalfModelNoMasters):
    """o2: the optimizer steps float32 masters of the half-precision parameters.

    The masters start from the weights that the model had before it was cast. From the rounded ones, updates that are
    small beside a rounding step move no weight of the model for a long time, and then many at once; from these, as many
    weights cross to the next value in each step as float32 would move them on average. Gradients of several
    micro-batches are added up in float32, but where there are several ranks: there they are moved once, after the
    backward that reduces them over the ranks, since what was moved before would never be reduced.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._masters: dict[Optimizer, Masters] = {}
        self._unrounded: dict[torch.Tensor, torch.Tensor] = {}

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        trained = [each for each in model.parameters() if each.dtype == torch.float32 and each.requires_grad]
        before = {parameter: parameter.data for parameter in trained}
        super()._convert(model, kept)
        self._unrounded |= {each: weights for each, weights in before.items() if each.dtype == self.dtype}

    def optimizer(self, model: nn.Module, optimizer: Optimizer) -> Optimizer:
        if optimizer in self._masters:
            raise RuntimeError("precision.optimizer was called twice for the same optimizer")
        refuse_sharded(model)
        super().optimizer(model, optimizer)
        own = [each for group in optimizer.param_groups for each in group["params"]]
        unrounded = {each: self._unrounded.pop(each) for each in own if each in self._unrounded}
        if not same_on_all_ranks(list(unrounded.values())):
            unrounded = {}  # DDP made the rounded weights alike, and nothing else is
        masters = self._masters[optimizer] = Masters(optimizer, unrounded)
        for module in model.modules():
            if module in self._cast:  # a function, not a method: copying the model must not copy the masters
                module.register_load_state_dict_post_hook(lambda *_: masters.follow_weights())
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        if not several_ranks():
            for masters in self._masters.values():
                masters.take_gradients()  # those of the micro-batches before this one
        super().backward(loss)

    def step(self, optimizer: Optimizer, clip: float | None = None) -> StepOutcome:
        masters = self._masters.get(optimizer)
        if masters is None:
            raise RuntimeError(
                "precision.step(optimizer) comes after optimizer = precision.optimizer(model, optimizer)"
            )
        if clip is None and self.loss_scale.mode == "none" and masters.lends():
            masters.lend_gradients()
        else:
            masters.take_gradients()
        outcome = super().step(optimizer, clip)
        masters.give_weights()
        masters.drop_gradients()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [each.state() for each in self._masters.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for masters, saved in zip(self._masters.values(), state["masters"], strict=True):
            masters.load(saved)


class HalfModel(Autocast):
    """o3: half precision throughout, inputs included. Only the loss is float32, which the loop sees to."""

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type, outputs_to=self.dtype)
        to_dtype(model, self.dtype, kept)

    def forward(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def input(self, tensor: Any) -> Any:
        return floats_to(tensor, self.dtype)

    def backward(self, loss: torch.Tensor) -> None:
        if loss.dtype != torch.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype} and should be float32: cast what the model puts out, as in "
                "loss = cross_entropy(model(precision.input(inputs)).float(), labels)"
            )
        super().backward(loss)


MECHANISMS: dict[str, type[Precision]] = {
    "float32": Precision,
    "autocast": Autocast,
    "half_model_fp32_masters": HalfModelFloat32Masters,
    "half_model_no_masters": HalfModelNoMasters,
    "half_model": HalfModel,
}


@contextlib.contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Any:
    with outer, inner:
        yield
