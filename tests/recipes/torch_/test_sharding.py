"""parallel=fsdp on several gloo ranks: what is computed, what is reduced, what is saved, and what proves it."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from recipes.gpt import GptSettings
from recipes.precision.levels import Amp, LossScale
from recipes.precision.resolved import resolve
from recipes.settings import Settings
from recipes.torch_.devices import World
from recipes.torch_.gpt import Net
from recipes.torch_.loop import Run
from recipes.torch_.observe.observer import PrecisionObserver
from recipes.torch_.precision import Precision, sharding
from recipes.torch_.state import State
from recipes.torch_.supervised import measure
from recipes.torch_.trained import Trained
from recipes.trainer.progress import Progress
from recipes.typed import SettingsError
from tests.recipes.torch_.observed_runs import observed
from tests.recipes.torch_.scenarios import RANKS, problems

CPU = torch.device("cpu")
TINY = {"vocab_size": 64, "layers": 2, "width": 32, "heads": 2, "context": 16}


def precision_of(amp: Amp, scale: LossScale | None = None, parallel: str = "fsdp", compile: bool = False) -> Precision:
    return Precision.apply(
        resolve(
            amp,
            scale or LossScale(init=8.0),
            framework="torch",
            device="cpu",
            capability=None,
            environ={},
            parallel=parallel,
        ),
        CPU,
        compile=compile,
    )


def sharded(precision: Precision, net: nn.Module) -> nn.Module:
    mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu")
    return sharding.shard(precision.cast(net), precision.resolved, mesh)


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [each.full_tensor().detach() for each in model.parameters()]


class Training:
    """A few steps of a small network, on other samples on each rank."""

    def __init__(self, amp: Amp, parallel: str = "fsdp", prepare: Any = None, **settings: Any) -> None:
        torch.manual_seed(0)
        self.precision = precision_of(amp, parallel=parallel)
        self.net: Any = Net(GptSettings(**{**TINY, **settings}))
        if prepare is not None:
            self.net = prepare(self.precision, self.net)
        elif parallel == "fsdp":
            self.net = sharded(self.precision, self.net)
        else:
            self.net = DistributedDataParallel(self.precision.cast(self.net))
        adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.optimizer = self.precision.optimizer(self.net, adam)
        self.samples = torch.Generator().manual_seed(distributed.get_rank())
        self.observer = PrecisionObserver(self.net, self.precision.resolved)

    def step(self, factor: float = 1.0) -> Any:
        ids = torch.randint(0, 64, (2, 17), generator=self.samples)
        with self.precision.forward():
            logits = self.precision.output(self.net(ids[:, :-1]))
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.precision.backward(loss * factor)
        outcome = self.precision.step(self.optimizer, clip=1.0)
        self.precision.update()
        self.optimizer.zero_grad()
        return outcome

    def saved(self) -> State:
        """What saves and resumes it."""
        model = getattr(self.net, "module", self.net)
        trained = Trained(model=model, optimizers=[self.optimizer], precision=self.precision)
        parallel = self.precision.resolved.parallel
        world = World(rank=distributed.get_rank(), size=RANKS, device=CPU)
        return State(trained=trained, settings=Settings(parallel=parallel), world=world)  # type: ignore[arg-type]

    def values(self) -> list[torch.Tensor]:
        """What the optimizer steps, and what it keeps of it, whole."""
        stepped = [each for group in self.optimizer.param_groups for each in group["params"]]
        kept = [value for each in stepped for _, value in sorted(self.optimizer.state[each].items())]
        return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in (*stepped, *kept)]

    def observed(self) -> dict[str, Any]:
        for number in (1, 2):
            with self.observer.step(number):
                self.step()
        return observed(self.observer.reports, {1, 2})


def trains_as_ddp_does(rank: int, amp: Amp, **settings: Any) -> None:
    one, other = Training(amp, **settings), Training(amp, parallel="ddp", **settings)
    for _ in range(4):
        first, second = one.step(), other.step()
        assert float(first.grad_norm) == pytest.approx(float(second.grad_norm), rel=1e-3)
    masters = [each.detach() for each in other.precision.master_parameters().values()]
    for mine, theirs in zip(whole(one.net), masters, strict=True):
        assert (mine - theirs).norm() < 1e-3 * theirs.norm()  # Adam turns a last bit of a gradient near 0 into a step


def batch_norms_train_as_under_ddp(rank: int) -> None:
    """Each rank normalizes by its own samples, and keeps statistics of its own that are not sharded."""
    found = []
    for parallel in ("fsdp", "ddp"):
        torch.manual_seed(0)
        precision = precision_of(Amp(level="o2"), parallel=parallel)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        model = sharded(precision, net) if parallel == "fsdp" else DistributedDataParallel(precision.cast(net))
        optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        images = torch.Generator().manual_seed(rank)
        for _ in range(3):
            with precision.forward():
                outputs = precision.output(model(precision.input(torch.randn(4, 3, 8, 8, generator=images))))
            precision.backward(outputs.square().mean())
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        assert net[1].running_mean.dtype == torch.float32
        found.append([*(each.detach() for each in precision.master_parameters().values()), net[1].running_mean])
    if rank:  # DDP gives the other ranks the first one's statistics
        found = [each[:-1] for each in found]
    for mine, theirs in zip(*found, strict=True):
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        assert (mine - theirs).norm() < 1e-3 * theirs.norm()


def ranks_measure_together(rank: int) -> None:
    """Each forward gathers from both: a rank with fewer held-out samples, or none, must not leave the other waiting."""
    torch.manual_seed(0)
    precision = precision_of(Amp(level="o0"))
    net = sharded(precision, nn.Linear(8, 4))
    mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu")
    run: Any = SimpleNamespace(world=World(rank=rank, size=RANKS, device=CPU, mesh=mesh), precision=precision)
    inputs, labels = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4
    weight, bias = whole(net)
    logits = inputs @ weight.T + bias
    for count, at_once in ((5, 1), (5, 2), (1, 1)):
        shares = [torch.from_numpy(each) for each in Run.held_out(run, count, at_once)]
        found = measure(run, net, ((inputs[each], labels[each]) for each in shares), count)
        assert found["loss"] == pytest.approx(cross_entropy(logits[:count], labels[:count]).item(), rel=1e-5)
        assert found["accuracy"] == (logits.argmax(1) == labels)[:count].sum().item() / count


def state_goes_from_shards_to_masters_and_back(rank: int) -> None:
    """Bit for bit: weights, what the optimizer averages, the loss scale."""
    folders: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    distributed.broadcast_object_list(folders)
    folder = Path(folders[0], "checkpoints")
    trainings = [Training(Amp(level="o2", dtype="float16"), parallel=each) for each in ("fsdp", "ddp", "fsdp")]
    for number, (before, after) in enumerate(itertools.pairwise(trainings), start=1):
        for _ in range(2):
            before.step(factor=float("inf") if number == 1 else 1.0)
        before.saved().save(folder, Progress(step=number))
        found = after.saved().resume(folder)
        assert found is not None
        assert (found[0].step, found[0].exact) == (number, False)
        assert after.precision.scale == before.precision.scale < 8.0
        for mine, theirs in zip(before.values(), after.values(), strict=True):
            assert torch.equal(mine, theirs)
        after.step()
    if rank == 0:
        shutil.rmtree(folder.parent)


def one_rank_overflows(rank: int) -> None:
    training = Training(Amp(level="o2", dtype="float16"))
    before = whole(training.net)
    outcome = training.step(factor=float("inf") if rank == 1 else 1.0)
    assert not outcome.applied
    assert training.precision.scale == 4.0
    assert all(torch.equal(*each) for each in zip(before, whole(training.net), strict=True))
    assert training.step().applied
    assert not torch.equal(before[0], whole(training.net)[0])


def equal_gradients_add_up(rank: int, dtype: str) -> None:
    """A large one on one rank, 1 and 1 and 1 on the other: half precision has no such sum."""
    large = 256.0 if dtype == "bfloat16" else 2048.0
    precision = precision_of(Amp(level="o2", dtype=dtype), LossScale(mode="none"))
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    model = sharded(precision, net)
    optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for gradient in [1.0] * 3 if rank else [large, 0.0, 0.0]:
        with precision.forward():
            loss = model(torch.full((1, 1), gradient)).float().sum()
        precision.backward(loss)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == (large + 3) / 2


def blocks_norms_and_kept_modules_are_apart(rank: int) -> None:
    precision = precision_of(Amp(level="o2", keep_fp32=("blocks.1.mlp",)))
    model = sharded(precision, Net(GptSettings(**TINY, tied=True)))
    apart = {name for name, each in model.named_modules() if hasattr(each, "unshard")}
    norms = {f"blocks.{block}.norm{norm}" for block in range(2) for norm in (1, 2)}
    assert apart == {"", "blocks.0", "blocks.1", "blocks.1.mlp", "norm", *norms}
    ids = torch.ones(2, 8, dtype=torch.int64)
    seen: dict[str, torch.dtype] = {}
    for name in ("blocks.0.norm1", "blocks.0.mlp.up", "blocks.1.mlp.up"):
        module = model.get_submodule(name)
        module.register_forward_hook(
            lambda module, _, out, name=name: seen.update({name: out.dtype, f"{name}.weight": module.weight.dtype}),
            prepend=True,
        )
    with precision.forward():
        model(ids)
    float32, half = torch.float32, torch.bfloat16
    assert seen["blocks.0.norm1.weight"] is float32
    assert (seen["blocks.0.mlp.up"], seen["blocks.0.mlp.up.weight"]) == (half, half)
    assert (seen["blocks.1.mlp.up"], seen["blocks.1.mlp.up.weight"]) == (float32, float32)
    with pytest.raises(SettingsError, match=r"amp\.keep_fp32 matches head.*shares weight with.*parallel=ddp"):
        sharded(precision_of(Amp(level="o2", keep_fp32=("head",))), Net(GptSettings(**TINY, tied=True)))


def all_norms_are_one_collective(rank: int) -> None:
    """Weights of blocks are gathered for forward and for backward, those of norms and of no block once."""
    training, collectives = Training(Amp(level="o2")), Collectives()
    training.step()
    with collectives:
        training.step()
    float32, half = torch.float32, torch.bfloat16
    assert collectives.seen["_allgather_base_", half] == 2 * TINY["layers"] + 1
    assert collectives.seen["_allgather_base_", float32] == 1
    assert collectives.seen["_reduce_scatter_base_", float32] == TINY["layers"] + 2


class Collectives(TorchDispatchMode):
    """Counts collectives by the dtype of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.seen[func.overloadpacket.__name__, args[0].dtype] += 1
        return func(*args, **(kwargs or {}))


def proved(rank: int, amp: Amp, **settings: Any) -> None:
    found = Training(amp, **settings).observed()
    assert found["verdict"] == "proved", found["why"]
    half = {"float16": "float16"}.get(amp.dtype, "bfloat16")
    stored, gathered, summed = {
        "o0": ("float32", "float32", "float32"),
        "o1": ("float32", "float32", "float32"),
        "o2": ("float32", half, "float32"),
        "o3": (half, half, half),
    }[amp.level]
    assert set(found["param_dtypes"]) == {stored}
    assert (found["gather_dtype"], found["reduce_dtype"], found["state_dtype"]) == (gathered, summed, stored)
    assert f"parameters in shards of {stored}, gathered in {gathered}" in found["why"]


def a_step_after_a_measure_is_proved(rank: int) -> None:
    """A forward without a backward leaves weights gathered, and the next step would gather none."""
    training, taken = Training(Amp(level="o2")), {}

    def measured() -> dict[str, float]:
        with torch.no_grad(), training.precision.forward():
            return {"loss": float(training.net(torch.ones(2, 8, dtype=torch.int64)).mean())}

    mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu")
    run: Any = SimpleNamespace(
        world=World(rank=rank, size=RANKS, device=CPU, mesh=mesh),
        precision=training.precision,
        settings=None,
        _train=taken.update,
    )
    Run.fit(
        run,
        model=training.net,
        optimizers=[training.optimizer],
        step=lambda batch: training.step(),
        evaluate=measured,
        samples=1,
        data="",
        data_digest="",
    )
    for number in (1, 2):
        with training.observer.step(number):
            training.step()
        assert taken["evaluate"]()
    found = observed(training.observer.reports, {1, 2})
    assert found["verdict"] == "proved", found["why"]


def contradicted(rank: int, text: str, amp: Amp | None = None, prepare: Any = None, spoil: Any = None) -> None:
    training = Training(amp or Amp(level="o2"), prepare=prepare)
    if spoil is not None:
        spoil(training, rank)
    found = training.observed()
    assert found["verdict"] == "contradicted", found["why"]
    assert text in found["why"]


def by_policies(**body: Any) -> Any:
    """A cast model sharded with a policy of another author."""

    def prepare(precision: Precision, net: nn.Module) -> nn.Module:
        precision.cast(net)
        norm = MixedPrecisionPolicy(output_dtype=torch.bfloat16, cast_forward_inputs=False)
        policy = MixedPrecisionPolicy(cast_forward_inputs=False, **body)
        mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu")
        for module in list(net.modules()) if "norms" not in body else []:
            if isinstance(module, nn.RMSNorm):
                fully_shard(module, mesh=mesh, mp_policy=norm)
        return fully_shard(net, mesh=mesh, mp_policy=policy)

    return prepare


def norms_like_all_else(precision: Precision, net: nn.Module) -> nn.Module:
    mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_shard(precision.cast(net), mesh=mesh, mp_policy=policy)


def cast_shards(training: Training, rank: int) -> None:
    training.net.bfloat16()


def without_autocast(training: Training, rank: int) -> None:
    if rank == 1:
        training.precision.forward = contextlib.nullcontext  # type: ignore[method-assign]


def half_state(training: Training, rank: int) -> None:
    """An average of gradients in half precision, as it is after the step."""
    average = HalfAverage(training.net.parameters(), lr=1e-2)
    training.optimizer = training.precision.optimizer(training.net, average)


class HalfAverage(torch.optim.SGD):
    """SGD that keeps a momentum in bfloat16."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"momentum_buffer": parameter.grad.bfloat16()}


HALF = torch.bfloat16
SCENARIOS: dict[str, Any] = {
    "as-ddp-o0": lambda rank: trains_as_ddp_does(rank, Amp(level="o0")),
    "as-ddp-o2-bfloat16": lambda rank: trains_as_ddp_does(rank, Amp(level="o2", dtype="bfloat16")),
    "as-ddp-o2-float16": lambda rank: trains_as_ddp_does(rank, Amp(level="o2", dtype="float16")),
    "as-ddp-recompute": lambda rank: trains_as_ddp_does(rank, Amp(level="o2"), recompute="full"),
    "as-ddp-batch-norm": batch_norms_train_as_under_ddp,
    "measured-together": ranks_measure_together,
    "from-shards-and-back": state_goes_from_shards_to_masters_and_back,
    "one-rank-overflows": one_rank_overflows,
    "equal-gradients-bfloat16": lambda rank: equal_gradients_add_up(rank, "bfloat16"),
    "equal-gradients-float16": lambda rank: equal_gradients_add_up(rank, "float16"),
    "norms-together": all_norms_are_one_collective,
    "apart": blocks_norms_and_kept_modules_are_apart,
    "proved-o0": lambda rank: proved(rank, Amp(level="o0")),
    "proved-o1": lambda rank: proved(rank, Amp(level="o1")),
    "proved-o2": lambda rank: proved(rank, Amp(level="o2")),
    "proved-o2-float16": lambda rank: proved(rank, Amp(level="o2", dtype="float16")),
    "proved-o2-selective": lambda rank: proved(rank, Amp(level="o2"), recompute="selective"),
    "proved-o3": lambda rank: proved(rank, Amp(level="o3")),
    "proved-after-a-measure": a_step_after_a_measure_is_proved,
    "reduced-in-half": lambda rank: contradicted(
        rank,
        "of the gradients were summed over the ranks in bfloat16, but o2 does that in float32",
        prepare=by_policies(param_dtype=HALF, reduce_dtype=HALF),
    ),
    "gathered-in-float32": lambda rank: contradicted(
        rank, "of what was gathered of the parameters was float32, but o2", prepare=by_policies()
    ),
    "norms-in-half": lambda rank: contradicted(
        rank, "0 elements were gathered in float32", prepare=norms_like_all_else
    ),
    "shards-in-half": lambda rank: contradicted(
        rank, "parameters are bfloat16, but o2 makes them float32", spoil=cast_shards
    ),
    "not-sharded": lambda rank: contradicted(
        rank, "parameters are not in shards", prepare=lambda precision, net: precision.cast(net)
    ),
    "state-in-half": lambda rank: contradicted(rank, "of the optimizer's state are bfloat16", spoil=half_state),
    "one-rank-without-autocast": lambda rank: contradicted(
        rank, "step 1 on rank 1: 0.0% of forward", amp=Amp(level="o1"), spoil=without_autocast
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return problems(__name__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""
