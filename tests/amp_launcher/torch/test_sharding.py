"""parallel=fsdp on two gloo ranks: what is computed, what is reduced, what is saved, and what proves it."""

from __future__ import annotations

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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from amp_launcher.around.replaced import replaced
from amp_launcher.loop import execution
from amp_launcher.loop.progress import Progress
from amp_launcher.precision.levels import Amp
from amp_launcher.recipes.gpt import GptSettings
from amp_launcher.recipes.gpt.train_torch import Net
from amp_launcher.torch.devices import World
from amp_launcher.torch.loop import Run
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.supervised import measure
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import CPU, UNSCALED, accumulate, same, step
from tests.amp_launcher.torch.observed_runs import observed
from tests.amp_launcher.torch.scenarios import RANKS
from tests.amp_launcher.torch.sharded_runs import (
    PARALLEL,
    TINY,
    Training,
    check_close,
    mesh,
    precision_of,
    sharded,
    whole,
)


def trains_as_ddp_does(rank: int, amp: Amp, **settings: Any) -> None:
    one, other = Training(amp, **settings), Training(amp, parallel="ddp", **settings)
    for _ in range(4):
        first, second = one.step(), other.step()
        assert float(first.grad_norm) == pytest.approx(float(second.grad_norm), rel=1e-3)
    check_close(one.net.parameters(), other.precision.master_parameters().values())


def batch_norms_train_as_under_ddp(rank: int) -> None:
    """Each rank normalizes by its own samples, and keeps statistics of its own that are not sharded."""
    ends = []
    for parallel, wrap in PARALLEL.items():
        torch.manual_seed(0)
        precision = precision_of(Amp(level="o2"), parallel=parallel)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        model = wrap(precision, net)
        optimizer = precision.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        images = torch.Generator().manual_seed(rank)
        for _ in range(3):
            step(precision, model, optimizer, torch.randn(4, 3, 8, 8, generator=images))
        assert net[1].running_mean.dtype == torch.float32
        # DDP gives the other ranks the statistics of the first.
        ends.append([*precision.master_parameters().values(), *([] if rank else [net[1].running_mean])])
    check_close(*ends)


def ranks_measure_together(rank: int) -> None:
    """Each forward gathers from both: a rank with fewer held-out samples, or none, must not leave the other waiting."""
    torch.manual_seed(0)
    precision = precision_of(Amp(level="o0"))
    net = sharded(precision, nn.Linear(8, 4))
    run: Any = SimpleNamespace(world=World(rank=rank, size=RANKS, device=CPU, mesh=mesh()), precision=precision)
    inputs, labels = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4
    weight, bias = whole(net.parameters())
    logits = inputs @ weight.T + bias
    for count, at_once in ((5, 1), (5, 2), (1, 1)):
        shares = [torch.from_numpy(share) for share in Run.held_out(run, count, at_once)]
        result = measure(run, net, ((inputs[share], labels[share]) for share in shares), count)
        assert result["loss"] == pytest.approx(cross_entropy(logits[:count], labels[:count]).item(), rel=1e-5)
        assert result["accuracy"] == (logits.argmax(1) == labels)[:count].sum().item() / count


def state_goes_from_shards_to_masters_and_back(rank: int) -> None:
    """Bit for bit: weights, the optimizer's averages, the loss scale."""
    folders: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    distributed.broadcast_object_list(folders)
    folder = Path(folders[0], "checkpoints")
    trainings = [Training(Amp(level="o2", dtype="float16"), parallel=parallel) for parallel in ("fsdp", "ddp", "fsdp")]
    for number, (before, after) in enumerate(itertools.pairwise(trainings), start=1):
        for _ in range(2):
            before.step(factor=float("inf") if number == 1 else 1.0)
        before.saved().save(folder, Progress(step=number))
        resumed = after.saved().resume(folder)
        assert resumed is not None
        assert (resumed[0].step, resumed[0].exact) == (number, False)
        assert after.precision.scale == before.precision.scale < 8.0
        assert same(before.values(), after.values())
        after.step()
    if rank == 0:
        shutil.rmtree(folder.parent)


def one_rank_overflows(rank: int) -> None:
    training = Training(Amp(level="o2", dtype="float16"))
    before = whole(training.net.parameters())
    assert not training.step(factor=float("inf") if rank == 1 else 1.0).applied
    assert training.precision.scale == 4.0
    assert same(before, whole(training.net.parameters()))
    assert training.step().applied
    assert not torch.equal(before[0], whole(training.net.parameters())[0])


def equal_gradients_add_up(rank: int, dtype: Any, large: float) -> None:
    """A large one on one rank, 1 and 1 and 1 on the other: half precision has no such sum."""
    precision = precision_of(Amp(level="o2", dtype=dtype), UNSCALED)
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    model = sharded(precision, net)
    optimizer = precision.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    gradients = [1.0] * 3 if rank else [large, 0.0, 0.0]
    accumulate(precision, model, [torch.full((1, 1), gradient) for gradient in gradients], torch.sum)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == (large + 3) / 2


def blocks_norms_and_kept_modules_are_apart(rank: int) -> None:
    precision = precision_of(Amp(level="o2", keep_fp32=("blocks.1.mlp",)))
    model = sharded(precision, Net(GptSettings(**TINY, tied=True)))
    apart = {name for name, module in model.named_modules() if hasattr(module, "unshard")}
    norms = {f"blocks.{block}.norm{norm}" for block in range(2) for norm in (1, 2)}
    assert apart == {"", "blocks.0", "blocks.1", "blocks.1.mlp", "norm", *norms}
    dtypes: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    for name in ("blocks.0.norm1", "blocks.0.mlp.up", "blocks.1.mlp.up"):
        model.get_submodule(name).register_forward_hook(
            lambda module, _, out, name=name: dtypes.update({name: (module.weight.dtype, out.dtype)}), prepend=True
        )
    with precision:
        model(torch.ones(2, 8, dtype=torch.int64))
    float32, half = torch.float32, torch.bfloat16
    assert dtypes["blocks.0.norm1"][0] == float32
    assert dtypes["blocks.0.mlp.up"] == (half, half)
    assert dtypes["blocks.1.mlp.up"] == (float32, float32)
    with pytest.raises(SettingsError, match=r"amp\.keep_fp32 matches head.*shares weight with.*parallel=ddp"):
        sharded(precision_of(Amp(level="o2", keep_fp32=("head",))), Net(GptSettings(**TINY, tied=True)))


class Collectives(TorchDispatchMode):
    """Counts collectives by the dtype of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func.overloadpacket.__name__, args[0].dtype] += 1
        return func(*args, **(kwargs or {}))


def all_norms_are_one_collective(rank: int) -> None:
    """Weights of blocks are gathered for forward and for backward, those of norms and of no block once."""
    training, collectives = Training(Amp(level="o2")), Collectives()
    training.step()
    with collectives:
        training.step()
    assert collectives.counts["_allgather_base_", torch.bfloat16] == 2 * TINY["layers"] + 1
    assert collectives.counts["_allgather_base_", torch.float32] == 1
    assert collectives.counts["_reduce_scatter_base_", torch.float32] == TINY["layers"] + 2


def proved(rank: int, amp: Amp, **settings: Any) -> None:
    result = Training(amp, **settings).observed()
    assert result["verdict"] == "proved", result["why"]
    half = {"float16": "float16"}.get(amp.dtype, "bfloat16")
    in_float32 = ("float32", "float32", "float32")
    levels = {"o0": in_float32, "o1": in_float32, "o2": ("float32", half, "float32"), "o3": (half, half, half)}
    stored, gathered, summed = levels[amp.level]
    assert set(result["param_dtypes"]) == {stored}
    assert (result["gather_dtype"], result["reduce_dtype"], result["state_dtype"]) == (gathered, summed, stored)
    assert f"parameters in shards of {stored}, gathered in {gathered}" in result["why"]


def a_step_after_a_measure_is_proved(rank: int) -> None:
    """A forward without a backward leaves weights gathered, and the next step would gather none."""
    training, arguments = Training(Amp(level="o2")), {}

    def measured() -> dict[str, float]:
        with torch.no_grad(), training.precision:
            return {"loss": float(training.net(torch.ones(2, 8, dtype=torch.int64)).mean())}

    run: Any = SimpleNamespace(
        world=World(rank=rank, size=RANKS, device=CPU, mesh=mesh()),
        precision=training.precision,
        settings=None,
    )
    fit: Any = {"model": training.net, "optimizers": [training.optimizer], "step": None, "samples": 1}
    with replaced(execution, "train", lambda run, **given: arguments.update(given)):
        Run.fit(run, evaluate=measured, data="", data_digest="", **fit)
    for number in (1, 2):
        with training.observer.step(number):
            training.step()
        assert arguments["evaluate"]()
    result = observed(training.observer.reports, {1, 2})
    assert result["verdict"] == "proved", result["why"]


def contradicted(rank: int, why: str, prepare: Any = None, spoil: Any = None) -> None:
    training = Training(Amp(level="o2"), prepare=prepare)
    if spoil is not None:
        spoil(training)
    result = training.observed()
    assert (result["verdict"], why in result["why"]) == ("contradicted", True), result["why"]


def by_policies(norms: bool, **body: Any) -> Any:
    """A cast model sharded with a policy of another author; `norms` says that norms have one of their own."""

    def prepare(precision: Precision, net: nn.Module) -> nn.Module:
        precision.prepare(net)
        norm = MixedPrecisionPolicy(output_dtype=torch.bfloat16, cast_forward_inputs=False)
        for module in list(net.modules()) if norms else []:
            if isinstance(module, nn.RMSNorm):
                fully_shard(module, mesh=mesh(), mp_policy=norm)
        return fully_shard(net, mesh=mesh(), mp_policy=MixedPrecisionPolicy(cast_forward_inputs=not norms, **body))

    return prepare


class HalfAverage(torch.optim.SGD):
    """SGD that keeps a momentum in bfloat16."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"momentum_buffer": parameter.grad.bfloat16()}


def half_state(training: Training) -> None:
    average = HalfAverage(training.net.parameters(), lr=1e-2)
    training.optimizer = training.precision.prepare(average)


HALF = torch.bfloat16
AS_DDP = {
    "as-ddp-o0": (Amp(level="o0"), {}),
    "as-ddp-o2-bfloat16": (Amp(level="o2", dtype="bfloat16"), {}),
    "as-ddp-o2-float16": (Amp(level="o2", dtype="float16"), {}),
    "as-ddp-recompute": (Amp(level="o2"), {"recompute": "full"}),
}
PROVED = {
    "proved-o0": (Amp(level="o0"), {}),
    "proved-o1": (Amp(level="o1"), {}),
    "proved-o2": (Amp(level="o2"), {}),
    "proved-o2-float16": (Amp(level="o2", dtype="float16"), {}),
    "proved-o2-selective": (Amp(level="o2"), {"recompute": "selective"}),
    "proved-o3": (Amp(level="o3"), {}),
}
CONTRADICTED: dict[str, tuple[str, Any, Any]] = {
    "reduced-in-half": (
        "of the gradients were summed over the ranks in bfloat16, but o2 does that in float32",
        by_policies(norms=True, param_dtype=HALF, reduce_dtype=HALF),
        None,
    ),
    "gathered-in-float32": (
        "of what was gathered of the parameters was float32, but o2",
        by_policies(norms=True),
        None,
    ),
    "norms-in-half": (
        "0 elements were gathered in float32",
        by_policies(norms=False, param_dtype=HALF, reduce_dtype=torch.float32),
        None,
    ),
    "shards-in-half": (
        "parameters are bfloat16, such as those of module blocks.0.attention.qkv, but o2 makes them float32",
        None,
        lambda training: training.net.bfloat16(),
    ),
    "not-sharded": ("parameters are not in shards", lambda precision, net: precision.prepare(net), None),
    "state-in-half": ("of the optimizer's state are bfloat16", None, half_state),
}
SCENARIOS: dict[str, Any] = {
    **{name: lambda rank, run=run: trains_as_ddp_does(rank, run[0], **run[1]) for name, run in AS_DDP.items()},
    "as-ddp-batch-norm": batch_norms_train_as_under_ddp,
    "measured-together": ranks_measure_together,
    "from-shards-and-back": state_goes_from_shards_to_masters_and_back,
    "one-rank-overflows": one_rank_overflows,
    "equal-gradients-bfloat16": lambda rank: equal_gradients_add_up(rank, "bfloat16", 256.0),
    "equal-gradients-float16": lambda rank: equal_gradients_add_up(rank, "float16", 2048.0),
    "norms-together": all_norms_are_one_collective,
    "apart": blocks_norms_and_kept_modules_are_apart,
    **{name: lambda rank, run=run: proved(rank, run[0], **run[1]) for name, run in PROVED.items()},
    "proved-after-a-measure": a_step_after_a_measure_is_proved,
    **{name: lambda rank, wrong=wrong: contradicted(rank, *wrong) for name, wrong in CONTRADICTED.items()},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""
