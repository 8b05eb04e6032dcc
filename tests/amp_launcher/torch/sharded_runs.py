"""Small networks trained in shards or in replicas, on ranks that have met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve
from amp_launcher.recipes.gpt import GptSettings
from amp_launcher.recipes.gpt.train_torch import Net
from amp_launcher.settings import Settings
from amp_launcher.torch.devices import World
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import Precision, calls, sharding
from amp_launcher.torch.state import State
from amp_launcher.torch.trained import Trained
from tests.amp_launcher.torch.loops import CPU, step
from tests.amp_launcher.torch.observed_runs import observed
from tests.amp_launcher.torch.scenarios import RANKS

TINY = {"vocab_size": 64, "layers": 2, "width": 32, "heads": 2, "context": 16}


def precision_of(amp: Amp, scale: LossScale | None = None, parallel: str = "fsdp", compile: bool = False) -> Precision:
    scale = scale or LossScale(init=8.0)
    place: Any = {"framework": "torch", "device": "cpu", "capability": None, "environ": {}, "parallel": parallel}
    return calls.precision_of(resolve(amp, scale, **place), CPU, compile=compile)


def mesh() -> DeviceMesh:
    return DeviceMesh.from_group(distributed.group.WORLD, "cpu")


def sharded(precision: Precision, net: nn.Module) -> nn.Module:
    return sharding.shard(precision.prepare(net), precision.resolved, mesh())


def replicated(precision: Precision, net: nn.Module) -> nn.Module:
    return DistributedDataParallel(precision.prepare(net))


PARALLEL = {"fsdp": sharded, "ddp": replicated}


def whole(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach() for tensor in tensors]


def check_close(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> None:
    for mine, theirs in zip(whole(one), whole(other), strict=True):
        assert (mine - theirs).norm() < 1e-3 * theirs.norm()  # Adam turns a last bit of a gradient near 0 into a step


class Training:
    """A few steps of a small network, on other samples on each rank."""

    def __init__(self, amp: Amp, parallel: str = "fsdp", prepare: Any = None, **settings: Any) -> None:
        torch.manual_seed(0)
        self.precision = precision_of(amp, parallel=parallel)
        self.net: Any = (prepare or PARALLEL[parallel])(self.precision, Net(GptSettings(**{**TINY, **settings})))
        adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.optimizer = self.precision.prepare(adam)
        self.samples = torch.Generator().manual_seed(distributed.get_rank())
        self.observer = PrecisionObserver(self.net, self.precision.resolved)

    def step(self, factor: float = 1.0) -> Any:
        ids = torch.randint(0, 64, (2, 17), generator=self.samples)

        def loss_of(logits: torch.Tensor) -> torch.Tensor:
            return factor * cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

        return step(self.precision, self.net, self.optimizer, ids[:, :-1], loss_of, clip=1.0)

    def saved(self) -> State:
        """What saves and resumes it."""
        model = getattr(self.net, "module", self.net)
        trained = Trained(model=model, optimizers=[self.optimizer], precision=self.precision)
        parallel: Any = self.precision.resolved.parallel
        world = World(rank=distributed.get_rank(), size=RANKS, device=CPU)
        return State(trained=trained, settings=Settings(parallel=parallel), world=world)

    def values(self) -> list[torch.Tensor]:
        """What the optimizer steps, and the state that it keeps."""
        entries = [
            entry for parameter in self.net.parameters() for entry in sorted(self.optimizer.state[parameter].items())
        ]
        state = [value for key, value in entries if key != "master"]
        return whole([*self.precision.master_parameters().values(), *state])

    def observed(self) -> dict[str, Any]:
        for number in (1, 2):
            with self.observer.step(number):
                self.step()
        return observed(self.observer.reports, {1, 2})
