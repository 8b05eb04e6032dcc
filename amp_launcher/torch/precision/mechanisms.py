"""o1, o2 and o3 as mechanisms."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision import float8
from amp_launcher.torch.precision.base import Mechanism
from amp_launcher.torch.precision.cast import NORMS, compute_in_float32, matching, to_dtype
from amp_launcher.torch.precision.master_weight import average_in_float32
from amp_launcher.torch.precision.masters import Masters
from amp_launcher.torch.precision.model_checks import refuse_sharded, same_on_all_ranks, several_ranks
from amp_launcher.torch.precision.operation_lists import OperationLists, refuse_unreachable
from amp_launcher.torch.precision.optimizer_weights import HALF as HALVES
from amp_launcher.torch.precision.optimizer_weights import moves_nothing
from amp_launcher.torch.precision.reduction import reduce_in_float32
from amp_launcher.torch.precision.running_statistics import RunningStatistics
from amp_launcher.torch.precision.saved_state import SavedState


class Autocast(Mechanism, mechanism="autocast"):
    """o1: the model stays float32, and each operation runs in the dtype that the operation lists give it."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._lists = None
        if resolved.allow or resolved.deny:
            self._lists = OperationLists(resolved.allow, resolved.deny, self.dtype, device.type)
        self._stepping = False
        self._statistics = RunningStatistics() if resolved.loss_scale.mode != "none" else None
        self._unscaled: set[torch.Tensor] = set()
        """The float32 parameters of all optimizers, where there is a loss scale."""

    def cast(self, model: nn.Module) -> None:
        super().cast(model)
        names = matching(model, self.resolved.amp.keep_fp32)
        self.kept = tuple(dict.fromkeys((*self.kept, *names)))
        kept = [model.get_submodule(name) for name in names]
        refuse_unreachable(model, kept, self.resolved.allow, self.resolved.deny)
        self._convert(model, kept)
        if self.resolved.gemm != HALF:
            self._add_gemm_layers(model, float8.convert(model, self.resolved))
        if self._statistics is not None:
            self._statistics.add(model)

    def _add_gemm_layers(self, model: nn.Module, chosen: Chosen) -> None:
        prefix = next(prefix for prefix, candidate in self._cast_models() if candidate is model)
        converted = (prefix + name for name in chosen.converted)
        left_out = {prefix + name: why for name, why in chosen.left_out.items()}
        before = self.gemm_layers
        self.gemm_layers = Chosen((*before.converted, *converted), {**before.left_out, **left_out})

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type)

    def add(self, optimizer: Optimizer) -> None:
        if self.resolved.loss_scale.mode != "none":
            self._refuse_to_unscale_twice(optimizer)
        self._scaler.add(optimizer)
        optimizer.register_step_pre_hook(self._before_step)
        SavedState(optimizer, self)

    def _refuse_to_unscale_twice(self, optimizer: Optimizer) -> None:
        """Gradients are unscaled in place: a second optimizer would unscale them again."""
        own = [
            weight for group in optimizer.param_groups for weight in group["params"] if weight.dtype == torch.float32
        ]
        for name, parameter in self._named_parameters():
            if parameter in self._unscaled and any(parameter is weight for weight in own):
                raise RuntimeError(
                    f"parameter {name} is in two optimizers, and the loss scale would be taken from its gradient "
                    "twice; give it to one of them, or say amp.dtype=bfloat16, which needs no loss scale"
                )
        self._unscaled.update(own)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse a step by the optimizer itself, but for the one by which `torch.distributed.checkpoint` makes a state
        to load into: that one moves neither weights nor the loss scale."""
        if self._stepping:
            return
        if not moves_nothing(optimizer):
            raise RuntimeError(
                "optimizer.step() would skip unscaling and the master weights; call precision.step(optimizer)"
            )
        self._stepping = True
        try:
            self._begin_step(optimizer, None)
            optimizer.step()
        finally:
            self._leave_step(optimizer)
            self._stepping = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # so that the step which follows does nothing

    def forward(self) -> AbstractContextManager[Any]:
        if self._statistics is not None:
            self._statistics.remember()
        autocast = torch.autocast(self.device.type, dtype=self.dtype)
        others = [] if self._lists is None else [self._lists]
        if self.resolved.gemm != HALF:
            others.append(float8.fast_kernels(self.resolved.gemm, self.device))
        return _all(autocast, *others) if others else autocast

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        half = self.resolved.gemm == HALF
        with contextlib.nullcontext() if half else float8.fast_kernels(self.resolved.gemm, self.device):
            super().backward(loss, optimizer)

    def _step(self, optimizers: Sequence[Optimizer], clip: float | None) -> StepOutcome:
        self._stepping = True
        try:
            return super()._step(optimizers, clip)
        finally:
            self._stepping = False
            if self._statistics is not None:
                self._statistics.restore()


class HalfModelNoMasters(Autocast, mechanism="half_model_no_masters"):
    """o2 with amp.master_weights=false: half-precision model with float32 norms, and autocast on.

    Buffers keep their dtype: tables of frequencies or positions need float32.
    """

    autocasts_half = True

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        super()._convert(model, kept)
        norms = [module for module in model.modules() if isinstance(module, NORMS)]
        to_dtype(model, self.dtype, [*kept, *norms], buffers=False)
        average_in_float32(model)


class HalfModelFloat32Masters(HalfModelNoMasters, mechanism="half_model_fp32_masters"):
    """o2: the optimizer steps float32 masters of the half-precision parameters.

    The masters start from the weights before the cast. If they started from the rounded ones, updates smaller than a
    rounding step would move no weight of the model for many steps, and then many at once. Gradients of several
    micro-batches, and of DDP's ranks, are summed in float32.
    """

    steps_float32 = True

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._masters = Masters()
        self._unrounded: dict[torch.Tensor, torch.Tensor] = {}
        self._reducing: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        trained = [
            parameter
            for parameter in model.parameters()
            if parameter.dtype == torch.float32 and parameter.requires_grad
        ]
        before = {parameter: parameter.data for parameter in trained}
        super()._convert(model, kept)
        self._unrounded |= {
            parameter: weights for parameter, weights in before.items() if parameter.dtype == self.dtype
        }
        hook = _Loading(self)
        for module in model.modules():
            if any(parameter.dtype == self.dtype for parameter in module.parameters(recurse=False)):
                module._register_load_state_dict_pre_hook(hook, with_module=True)

    def loading(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """The model is about to load these float32 values into a half-precision parameter."""
        weight = self._masters.get(parameter)
        if weight is not None:
            weight.propose(values)
        elif parameter.requires_grad:
            self._unrounded[parameter] = values.detach().to(parameter.device, copy=True)

    def look_at(self, model: nn.Module) -> None:
        refuse_sharded(model, "amp=o2")

    def reduce(self, wrapper: DistributedDataParallel) -> None:
        if wrapper not in self._reducing:
            reduce_in_float32(self._masters, wrapper)
            self._reducing.add(wrapper)
            self._note_reductions(wrapper.parameters())

    def add(self, optimizer: Optimizer) -> None:
        super().add(optimizer)
        self._add_masters(optimizer)

    def _renew_masters_alone(self) -> None:
        """As far as it needs no other rank."""
        if not several_ranks():
            self._renew_masters()

    def _renew_masters(self) -> None:
        for optimizer in self._masters.outdated():
            self._add_masters(optimizer)

    def _add_masters(self, optimizer: Optimizer) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        unrounded = {parameter: self._unrounded.pop(parameter) for parameter in own if parameter in self._unrounded}
        if not same_on_all_ranks(list(unrounded.values())):
            unrounded = {}  # DDP made only the rounded weights equal on all ranks
        self._masters.add(optimizer, unrounded)
        self._note_reductions(own)

    def _note_reductions(self, parameters: Iterable[torch.Tensor]) -> None:
        """Whose gradients DDP reduces."""
        reduced: dict[torch.Tensor, bool] = {}
        for module in self._reducing:
            reduced |= dict.fromkeys(module.parameters(), module.find_unused_parameters)
        for parameter in parameters:
            weight = self._masters.get(parameter)
            if weight is not None:
                weight.accumulates = parameter in reduced or not several_ranks()
                weight.zeroed_for_ddp = reduced.get(parameter, False)

    def master_parameters(self) -> dict[str, torch.Tensor]:
        self._renew_masters_alone()
        self._masters.follow_model()
        parameters = super().master_parameters()
        weights = {name: self._masters.get(parameter) for name, parameter in parameters.items()}
        return {name: weight.master if weight else parameters[name] for name, weight in weights.items()}

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        self._renew_masters()
        self._masters.begin_backward()
        try:
            super().backward(loss, optimizer)
        finally:
            self._masters.end_backward()

    def _begin_step(self, optimizer: Optimizer, clip: float | None) -> None:
        masters = self._masters
        self._renew_masters()
        masters.put(optimizer)
        if clip is None and self.resolved.loss_scale.mode == "none" and masters.can_share_grads(optimizer):
            masters.share_grads_with_masters(optimizer)
        else:
            masters.copy_grads_to_masters(optimizer)

    def _end_step(self, optimizer: Optimizer) -> None:
        self._masters.round(optimizer)
        self._masters.discard_sums(optimizer)

    def _leave_step(self, optimizer: Optimizer) -> None:
        if optimizer in self._masters:
            self._masters.take(optimizer)

    def saved(self, optimizer: Optimizer) -> dict[str, Any]:
        self._follow(optimizer)
        return super().saved(optimizer)

    def load_saved(self, optimizer: Optimizer, saved: Mapping[str, Any] | None) -> None:
        super().load_saved(optimizer, saved)
        if optimizer in self._masters:
            self._masters.loaded(optimizer)

    def unstepped_masters(self, optimizer: Optimizer) -> dict[int, dict[str, torch.Tensor]]:
        return self._masters.unstepped(optimizer)

    def _follow(self, optimizer: Optimizer) -> None:
        """Follow the optimizer's parameters as they are now."""
        if optimizer in self._masters:
            self._renew_masters_alone()
            self._masters.take_loaded(optimizer)
            self._masters.give(optimizer)
            self._masters.follow_model(optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, parameter in self._named_parameters():
            weight = self._masters.get(parameter)
            if weight is not None:
                weight.propose(state.get("masters", {}).get(name))  # earlier versions have them here


class ShardedFloat32Masters(Autocast, mechanism="sharded_fp32_masters"):
    """o2 under parallel=fsdp: the float32 shards of the parameters are the masters, and half precision is gathered.

    The model stays float32 here; `amp_launcher.torch.precision.sharding` makes it half-precision, except norms.
    """


class HalfModel(Autocast, mechanism="half_model"):
    """o3: half precision throughout, inputs included. Only the loss is float32, as the model's outputs are."""

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self.inputs_to = self.dtype

    def _convert(self, model: nn.Module, kept: list[nn.Module]) -> None:
        for module in kept:
            compute_in_float32(module, self.device.type, outputs_to=self.dtype)
        to_dtype(model, self.dtype, kept, buffers=True)
        average_in_float32(model)

    def forward(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        if loss.dtype != torch.float32:
            raise RuntimeError(
                f"the loss is {loss.dtype} and should be float32: make it of what the prepared model returns, called "
                "as model(inputs), or of .float()"
            )
        super().backward(loss, optimizer)


class _Loading:
    """A module's hook before it loads weights. Copies and pickles of the module get one that does nothing."""

    def __init__(self, precision: HalfModelFloat32Masters | None = None) -> None:
        self._precision = None if precision is None else weakref.ref(precision)

    def __call__(
        self, module: nn.Module, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *_: Any
    ) -> None:
        precision = self._precision and self._precision()
        if precision and metadata.get("assign_to_params_buffers"):
            raise RuntimeError(
                "model.load_state_dict(weights, assign=True) would replace the half-precision parameters that "
                "precision.prepare(model) made: leave assign=True out, or load before precision.prepare(model)"
            )
        for name, parameter in module.named_parameters(recurse=False):
            values = state.get(prefix + name)
            if precision and parameter.dtype in HALVES and getattr(values, "dtype", None) == torch.float32:
                precision.loading(parameter, values)

    def __reduce__(self) -> tuple[type[_Loading], tuple[()]]:
        return _Loading, ()


@contextlib.contextmanager
def _all(*managers: AbstractContextManager[Any]) -> Any:
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
