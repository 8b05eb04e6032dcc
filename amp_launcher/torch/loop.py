"""The loop that all recipes in torch share, from the command line to the result.

A recipe builds its model and says what one step is; `Run.fit` does the rest.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from amp_launcher import arguments
from amp_launcher.arguments import Arguments
from amp_launcher.leave import DONE
from amp_launcher.loop import execution
from amp_launcher.loop import main as trainer
from amp_launcher.loop import run as shared
from amp_launcher.loop.profiling import Profiler
from amp_launcher.loop.protocols import Evaluate, Executed
from amp_launcher.loop.steps import Load, Schedule, Steps
from amp_launcher.loop.utilization import TokenWork
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.resolved import resolve
from amp_launcher.torch import devices, flight_recorder, profiling
from amp_launcher.torch.devices import World
from amp_launcher.torch.hardware import TorchDevice
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import Precision, StepOutcome, precision_of, sharding
from amp_launcher.torch.spec import capability_of
from amp_launcher.torch.state import State
from amp_launcher.torch.trained import Trained

Loss: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor]
"""A mean over this rank's samples, a scalar; or several by name, of which the sum is the step's loss."""
Step = Callable[[Any], tuple[Loss, StepOutcome]]
"""From this rank's sample indices [micro-batches, samples in each], or what `load` made of them, to loss, outcome."""

__all__ = ["DONE", "Evaluate", "Load", "Loss", "Run", "Schedule", "Step", "main", "start"]


class Run(shared.Run):
    """One execution of a recipe by this process: what was asked, its precision, and its place among the ranks."""

    framework = "torch"
    world: World
    precision: Precision

    @classmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        settings = chosen.settings
        sharded = settings.parallel == "fsdp"
        flight_recorder.switch_on(settings, chosen.run, settings.device)
        world = devices.join(settings.device, arguments.planned_ranks(chosen.plan), os.environ, sharded=sharded)
        return cls(chosen, world, began)

    def __init__(self, chosen: Arguments, world: World, began: float) -> None:
        super().__init__(chosen, world, TorchDevice(world.device), world.size, began)
        settings, device = self.settings, world.device
        resolved = resolve(
            settings.amp,
            settings.loss_scale,
            framework="torch",
            device=device.type,
            capability=capability_of(device),
            environ=os.environ,
            tf32=settings.tf32,
            xla=settings.xla,
            parallel=settings.parallel,
        )
        self.precision = precision_of(resolved, device, compile=settings.compile)
        asked = settings.deterministic
        self.deterministic = device.type == "cpu" if asked is None else asked
        devices.make_repeatable(self.deterministic)
        torch.manual_seed(self.settings.seed % 2**63)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The prepared model, spread over the ranks and compiled as asked. From here on ranks draw their own dropout.

        Under parallel=fsdp it is changed in place, and its parameters are other ones from here on: optimizers come
        after this.
        """
        if self.world.mesh is not None:
            wrapped = sharding.shard(model, self.mode, self.world.mesh)
        else:
            wrapped = self.world.wrap(model)
        if self.world.size > 1:
            devices.seed_rank(self.settings.seed, self.world.rank)
        return torch.compile(wrapped) if self.settings.compile else wrapped

    def fit(
        self,
        *,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        step: Step,
        evaluate: Evaluate | None,
        samples: int,
        data: str,
        data_digest: str,
        load: Load | None = None,
        schedule: Schedule | None = None,
        same_data: bool = False,
        work: TokenWork | None = None,
    ) -> None:
        """Train to the end, or until asked to stop, and write the result; sets `exit_code`.

        `model` is the prepared model without its wrappers, `evaluate` None where nothing is held out, `data` a line for
        people, `data_digest` the SHA-256 of its values as `sha256:...`. Without `load` the step gets indices, on the
        device. Without `schedule` learning rates stay as they are. In a run folder that holds a checkpoint the run goes
        on from there; with `same_data` on data of the same digest alone. `work` is for samples of text: their rate is
        then in tokens.
        """
        trained = Trained(model=model, optimizers=optimizers, precision=self.precision)
        if evaluate is not None and self.world.mesh is not None:
            evaluate = sharding.freed_after(evaluate, model)
        execution.train(
            self,
            state=State(trained=trained, settings=self.settings, world=self.world),
            observer=PrecisionObserver(model, self.precision.resolved, self.precision.gemm_layers),
            executor=_Steps(step, optimizers, load, schedule, self),
            evaluate=evaluate,
            samples=samples,
            data=data,
            data_digest=data_digest,
            same_data=same_data,
            work=work,
        )

    @property
    def converted(self) -> Chosen | None:
        layers = self.precision.gemm_layers
        return layers if layers.converted else None

    def profiler(self) -> Profiler | None:
        return profiling.make(self.settings.profile, self.world.device, self.world.rank)


main = functools.partial(trainer.main, Run)
start = functools.partial(trainer.start, Run)


class _Steps(Steps):
    """`amp_launcher.loop.protocols.Executor` in torch: one step at a time."""

    def __init__(
        self,
        step: Step,
        optimizers: Sequence[torch.optim.Optimizer],
        load: Load | None,
        schedule: Schedule | None,
        run: Run,
    ) -> None:
        super().__init__(run.settings, run.world, load, schedule)
        self._step = step
        self._optimizers = optimizers  # their groups are other ones once a checkpoint was loaded
        self._device = run.world.device

    def shares(self, order: Any, epoch: int) -> Any:
        """[steps, micro-batches, samples in each]; on the device, unless they are still to be loaded."""
        mine = super().shares(order, epoch)
        return mine if self._prefetcher else torch.from_numpy(mine.copy()).to(self._device)

    def execute(self, shares: Any, first: int, count: int) -> Executed:
        for rate in self._rates(shares, first) or ():
            for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
                group["lr"] = rate
        (batch,), waited = self._loaded(shares, first)
        loss, outcome = self._step(batch)
        return Executed(loss=loss, lr=self._optimizers[0].param_groups[0]["lr"], outcome=outcome, waited=waited)
