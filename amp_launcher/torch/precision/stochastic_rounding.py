"""Bfloat16 weights that an optimizer steps in float32, rounded up or down at random so that the mean is right.

A bfloat16 value is the upper half of a float32 one. Adding a uniform random number to the lower half and cutting that
off rounds away from zero as often as the lower half says: an update of a hundredth of the distance between two
bfloat16 values moves every hundredth weight. Rounding to nearest would lose it.

Source: Zamirai et al., "Revisiting BFloat16 Training" (2020).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision.mechanisms import HalfModel
from amp_launcher.torch.precision.model_checks import refuse_sharded, several_ranks
from amp_launcher.torch.precision.optimizer_weights import SteppedWeights
from amp_launcher.typed import SettingsError

LOWER_BITS = 16
"""Mantissa bits of a float32 value that bfloat16 lacks."""

Watcher = Callable[[torch.Tensor, torch.Tensor], None]
WATCHERS: list[Watcher] = []
"""Called with the float32 values that an optimizer computed and the parameter that they were rounded into."""


def round_up_or_down(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Float32 `values` as bfloat16: each one of the two values next to it, in proportion to how near it is.

    `noise` is int32 of the same shape, uniform in [0, 2^16); it is overwritten. Values that bfloat16 has, zeros and
    infinities among them, stay as they are, and NaN stays NaN.
    """
    bits = noise.add_(values.view(torch.int32)).bitwise_right_shift_(LOWER_BITS)
    rounded = bits.to(torch.int16).view(torch.bfloat16)
    return rounded.masked_fill_(values.isnan(), torch.nan)


class StochasticRounding:
    """Makes optimizers step float32 copies of bfloat16 parameters, which exist during a step only.

    Between steps a copy holds no memory. Optimizers make their state like the weights that they step, so it is
    float32: in bfloat16 a moving average stops where its updates fall below half of the distance between two values.
    """

    def __init__(self) -> None:
        self._stepped: dict[Optimizer, SteppedWeights] = {}
        self._copies: dict[Optimizer, dict[torch.Tensor, torch.Tensor]] = {}
        """The float32 copies of each optimizer's parameters."""
        self._filled: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Copies that hold weights, with their parameters."""
        self._seed: int | None = None
        self._steps = 0
        """Optimizer steps so far: with the seed, all that the noise of the next one depends on."""

    def __contains__(self, optimizer: Optimizer) -> bool:
        return optimizer in self._copies

    def add(self, optimizer: Optimizer) -> None:
        """Prepare an optimizer. Collective where there are several ranks: all take rank 0's seed."""
        if self._seed is None:
            self._seed = _common_seed()
        self._stepped[optimizer], self._copies[optimizer] = SteppedWeights(optimizer), {}

    def _renew(self, optimizer: Optimizer) -> None:
        known = self._copies[optimizer]
        self._copies[optimizer] = {
            parameter: known[parameter] if parameter in known else torch.nn.Parameter(_nothing(parameter))
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.dtype == torch.bfloat16
        }
        self._stepped[optimizer].renew(self._copies[optimizer])

    @torch.no_grad()
    def expand(self, optimizer: Optimizer) -> None:
        """Fill the copies with weights and gradients, and make the optimizer step them, for one step."""
        if self._stepped[optimizer].outdated:
            self._renew(optimizer)
        for parameter, copy in self._copies[optimizer].items():
            if parameter.grad is not None:
                copy.data = parameter.detach().float()
                copy.grad = parameter.grad.float()
                self._filled.append((copy, parameter))
        self._stepped[optimizer].put()

    @torch.no_grad()
    def round(self) -> None:
        """Round the stepped copies into the model's parameters, and release them."""
        generators: dict[torch.device, torch.Generator] = {}
        for copy, parameter in self._filled:
            values = copy.detach()
            if values.device not in generators:
                generators[values.device] = torch.Generator(values.device).manual_seed(self._noise_seed())
            noise = torch.empty_like(values, dtype=torch.int32)
            noise.random_(0, 2**LOWER_BITS, generator=generators[values.device])
            parameter.copy_(round_up_or_down(values, noise))
            for watcher in WATCHERS:
                watcher(values, parameter.detach())
            _release(copy, parameter)
        self._filled = []
        self._steps += 1

    def release(self, optimizer: Optimizer) -> None:
        """After a step that may have failed: no copy holds memory, and the optimizer has the parameters again."""
        self._stepped[optimizer].take()
        for copy, parameter in self._filled:
            _release(copy, parameter)
        self._filled = []

    def _noise_seed(self) -> int:
        """Of 32 bits, which is what torch's generator on a CPU takes."""
        return int.from_bytes(hashlib.sha256(f"{self._seed} {self._steps}".encode()).digest()[:4], "little")

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "steps": self._steps}

    def load_state_dict(self, saved: Mapping[str, Any] | None) -> None:
        """Go on with the noise of a saved run. Raises `SettingsError` where it was rounded otherwise."""
        if saved is None:
            raise SettingsError(
                "amp.rounding=stochastic, and the checkpoint was saved with amp.rounding=nearest", "amp.rounding"
            )
        self._seed, self._steps = saved["seed"], saved["steps"]


def _nothing(parameter: torch.Tensor) -> torch.Tensor:
    """Zeros of the parameter's shape that take no memory."""
    return torch.zeros((), dtype=torch.float32, device=parameter.device).expand(parameter.shape)


def _release(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    copy.grad = None
    copy.data = _nothing(parameter)


def _common_seed() -> int:
    """This process's seed of torch; on several ranks rank 0's, since replicas have to be rounded alike."""
    seeds: list[Any] = [torch.initial_seed()]
    if several_ranks():
        distributed.broadcast_object_list(seeds)
    return int(seeds[0])


class StochasticHalfModel(HalfModel):
    """o3 with amp.rounding=stochastic: bfloat16 weights, stepped in float32 and rounded at random."""

    steps_float32 = True

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        super().__init__(resolved, device)
        self._rounding = StochasticRounding()

    def look_at(self, model: nn.Module) -> None:
        refuse_sharded(model, "amp.rounding=stochastic")

    def add(self, optimizer: Optimizer) -> None:
        super().add(optimizer)
        self._rounding.add(optimizer)

    def _take_steps(self, optimizers: Sequence[Optimizer], clip: float | None) -> StepOutcome:
        outcome = super()._take_steps(optimizers, clip)
        self._rounding.round()
        return outcome

    def _begin_step(self, optimizer: Optimizer, clip: float | None) -> None:
        self._rounding.expand(optimizer)

    def _leave_step(self, optimizer: Optimizer) -> None:
        if optimizer in self._rounding:
            self._rounding.release(optimizer)

    def saved(self, optimizer: Optimizer) -> dict[str, Any]:
        return {"dtype": str(self.dtype), **super().saved(optimizer), "rounding": self._rounding.state_dict()}

    def load_saved(self, optimizer: Optimizer, saved: Mapping[str, Any] | None) -> None:
        super().load_saved(optimizer, saved)
        if saved and saved.get("rounding"):
            self._rounding.load_state_dict(saved["rounding"])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rounding": self._rounding.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rounding.load_state_dict(state.get("rounding"))
