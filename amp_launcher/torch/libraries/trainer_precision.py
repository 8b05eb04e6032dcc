"""Every mode in transformers' `Trainer`, with o2's masters and float16's loss scale.

from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer

trainer = PrecisionTrainer(model, args, train_dataset=data, mode="o2")

For a library that derives its own: `class Own(PrecisionTrainer, SFTTrainer): ...`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import Trainer

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.precision import Precision


class PrecisionTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """A level, as "o2", or a mode's name, as "bf16-true", as `mode`; the launcher's request wins.

    Trainer's own checkpoints resume bit for bit: their states of optimizers have masters and loss scale. Clipping is by
    `max_grad_norm`, of the gradients that the optimizer steps by. A step that is skipped moves no learning rate.
    Raises `RuntimeError` for Trainer's own precision, FSDP and DeepSpeed.
    """

    def __init__(self, *args: Any, mode: str | Amp | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.applied: Precision | None = None  # until it trains
        self._mode = mode
        self._clip: float | None = None
        self._norm = torch.zeros(())
        if self.args.fp16 or self.args.bf16:
            raise RuntimeError("leave fp16 and bf16 out of TrainingArguments: PrecisionTrainer applies its mode itself")
        if self.args.fsdp or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise RuntimeError("PrecisionTrainer trains on one device and with DDP, without FSDP and DeepSpeed")
        self.accelerator.backward = self._backward
        self.accelerator.clip_grad_norm_ = self._clip_in_step

    def create_optimizer(self, *given: Any, **named: Any) -> Optimizer:
        if self.applied is None:
            self.applied = Precision(self._mode, device=self.args.device)
            optimizer = super().create_optimizer(*given, **named)  # transformers 4.44 takes none, 5.23 a model
            self.applied.prepare(self.model, optimizer)
            if self.applied.level == "o2":
                _open_block_in_calls(self.model, _Block(self.applied))
            self.optimizer = _Stepped(optimizer, self._step)
        return self.optimizer

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        return self.applied or contextlib.nullcontext()

    def _backward(self, loss: Any, **kwargs: Any) -> None:
        self._own.backward(loss / self.accelerator.gradient_accumulation_steps)

    def _clip_in_step(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """The norm, which has its value once the step is taken: Trainer reads it after that."""
        if math.isinf(max_norm):  # of a gradient that is written to the optimizer's is made anew, rounded
            norms = [parameter.grad.float().norm() for parameter in parameters if parameter.grad is not None]
            return torch.stack(norms).norm() / (self._own.scale or 1.0)
        self._clip, self._norm = max_norm, torch.zeros((), device=self.args.device)
        return self._norm

    def _step(self, optimizer: Optimizer) -> None:
        outcome = self._own.step(optimizer, clip=self._clip)
        self.optimizer._is_overflow = not outcome.applied  # accelerate's, by which Trainer leaves its schedule alone
        if outcome.grad_norm is not None:
            self._norm.copy_(outcome.grad_norm)

    @property
    def _own(self) -> Precision:
        assert self.applied is not None, "Trainer makes an optimizer first"
        return self.applied


class _Block:
    """`with precision:` around calls of a model outside of it, as where a library evaluates; not around those of its
    copies and pickles."""

    def __init__(self, precision: Precision | None = None) -> None:
        self._precision = precision
        self._entered: list[Precision] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _Block, ()

    def begin(self, module: nn.Module, inputs: Any) -> None:
        if self._precision is not None and not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            self._entered.append(self._precision.__enter__())

    def end(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._entered:
            self._entered.pop().__exit__(None, None, None)


def _open_block_in_calls(model: nn.Module, block: _Block) -> None:
    model.register_forward_pre_hook(block.begin, prepend=True)  # before the one that refuses such calls
    model.register_forward_hook(block.end, always_call=True)


class _Stepped(Optimizer):
    """What accelerate steps in place of an optimizer, and is all else of that."""

    def __init__(self, optimizer: Optimizer, step: Callable[[Optimizer], None]) -> None:
        self._stepped, self._take = optimizer, step

    param_groups = property(lambda self: self._stepped.param_groups)
    state = property(lambda self: self._stepped.state)
    defaults = property(lambda self: self._stepped.defaults)

    def state_dict(self) -> dict[str, Any]:
        return self._stepped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stepped.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._stepped.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self._take(self._stepped)
