"""Every mode in Lightning's `Trainer`, as a precision plugin.

from amp_launcher.torch.libraries.lightning_precision import LightningPrecision

trainer = Trainer(plugins=LightningPrecision("o2"), gradient_clip_val=1.0)
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision as Plugin

from amp_launcher.precision.levels import Amp, amp_named
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.precision.structures import floats_to


class LightningPrecision(Plugin):  # type: ignore[misc, unused-ignore]
    """A level, as "o2", or a mode's name, as "fp8", and `Precision`'s settings; the launcher's request wins.

    Lightning's own checkpoints resume bit for bit: their states of optimizers have masters and loss scale. At o3 the
    batch is half precision, and the loss is made of outputs of `self(inputs)`, or of `.float()`.
    Raises `SettingsError` for an unknown mode, and `RuntimeError` for what would leave out the loss scale.
    """

    def __init__(self, mode: str | Amp | None = None, **settings: Any) -> None:
        self.precision: Any = amp_named(mode, None)[0].asked if isinstance(mode, str) else "amp-launcher"
        self.applied: Precision | None = None  # until a model is there
        self._mode, self._settings = mode, settings
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._within = self._ran_backward = False
        self._clip: float | None = None

    def convert_module(self, module: Any) -> Any:
        device = module.trainer.strategy.root_device
        self.applied = self.applied or Precision(self._mode, device=device, **self._settings)
        if module not in self.applied.module_names():
            self.applied.prepare(module.to(device))
        return module

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        for optimizer in optimizers:
            if optimizer not in self._optimizers:  # as `validate` after `fit` gives it once more
                self._optimizers.add(self._own.prepare(optimizer))
        return model, optimizers, lr_schedulers

    def convert_input(self, data: Any) -> Any:
        return floats_to(data, self._own.dtype) if self._own.level == "o3" else data

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        with self._own:
            self._within = True
            try:
                yield
            finally:
                self._within = False

    @contextlib.contextmanager
    def _outside(self) -> Iterator[None]:
        """Manual optimization calls backward and step within `training_step`, which is a forward's block."""
        with contextlib.ExitStack() as stack:
            if self._within:
                self._own.__exit__(None, None, None)
                stack.callback(self._own.__enter__)
            yield

    def backward(self, tensor: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        own_clip = type(model).configure_gradient_clipping is not LightningModule.configure_gradient_clipping
        if args or kwargs or type(model).backward is not LightningModule.backward:
            raise RuntimeError("LightningPrecision runs backward itself: call manual_backward(loss) with nothing else")
        if self._own.resolved.loss_scale.mode != "none" and (own_clip or not model.automatic_optimization):
            raise RuntimeError("a loss scale needs automatic optimization and Trainer's clipping; bfloat16 needs none")
        with self._outside():
            self._own.backward(tensor)
        self._ran_backward = True

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        self._ran_backward = False  # nor is there a backward where StochasticWeightAveraging updates batch norms
        ended = closure()
        self._clip = None
        self._after_closure(model, optimizer)  # which calls clip_grad_by_norm
        trained = ended is not None and self._ran_backward  # else `training_step` gave no loss
        if trained or not model.automatic_optimization:
            with self._outside():
                self._own.step(optimizer, clip=self._clip)
        return ended

    def clip_grad_by_norm(self, optimizer: Any, clip_val: float) -> None:
        self._clip = clip_val

    def clip_grad_by_value(self, optimizer: Any, clip_val: float) -> None:
        super().clip_grad_by_value(optimizer, clip_val * (self._own.scale or 1.0))

    @property
    def _own(self) -> Precision:
        assert self.applied is not None, "Lightning converts a module first"
        return self.applied
