"""Two ranks over gloo: masters that stay in step, and the orders of wrapping that are refused."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.precision import Precision
from tests.recipes.torch_.scenarios import RANKS, problems

CPU = torch.device("cpu")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


def everywhere(tensors):
    """Each rank's values of all the tensors, one after another."""
    mine = torch.cat([each.detach().float().flatten() for each in tensors])
    gathered = [torch.empty_like(mine) for _ in range(RANKS)]
    distributed.all_gather(gathered, mine)
    return gathered


def masters_under_accumulation(rank, dtype):
    """Four steps of three micro-batches each, other data on each rank; the third overflows on rank 1 in float16."""
    precision = Precision.of(Amp(level="o2", dtype=dtype), LossScale(), CPU)
    model = DistributedDataParallel(precision.cast(network()))
    optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    start = everywhere(weights)[0]
    generator = torch.Generator().manual_seed(rank)
    applied = []
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(3):
            inputs = torch.randn(4, 8, generator=generator)
            if dtype == "float16" and step == 2 and rank == 1:
                inputs = inputs * torch.inf
            last = micro == 2
            if last:
                assert not torch.equal(*everywhere([each.grad for each in model.parameters()]))  # each has its own yet
            with contextlib.nullcontext() if last else model.no_sync():
                with precision.forward():
                    loss = model(precision.input(inputs)).float().square().mean() / 3
                precision.backward(loss)
        applied.append(precision.step(optimizer, clip=10.0).applied)
        precision.update()
        assert torch.equal(*everywhere(weights)), f"masters differ after step {step}"
        assert torch.equal(*everywhere(model.parameters()))
    assert applied == [True, True, dtype != "float16", True]
    assert precision.scale == (2.0**15 if dtype == "float16" else None)
    assert not torch.equal(everywhere(weights)[0], start)


def masters_begin_alike(rank):
    """With the weights from before the cast where the ranks agree on them, else with the rounded ones DDP handed on."""
    for seed, unrounded in ((0, True), (rank, False)):
        precision = Precision.of(Amp(level="o2"), LossScale(), CPU)
        torch.manual_seed(seed)
        plain = nn.Linear(8, 4)
        before = plain.weight.detach().clone()
        model = DistributedDataParallel(precision.cast(plain))
        optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        weight = optimizer.param_groups[0]["params"][0]
        assert torch.equal(*everywhere([weight]))
        assert torch.equal(weight, before if unrounded else plain.weight.float())
        assert not torch.equal(before, before.bfloat16().float())


def micro_batches_are_averaged_over_the_ranks(rank):
    """One step over both ranks' micro-batches moves the masters as one rank with all of them would."""
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(7))
    precision = Precision.of(Amp(level="o2"), LossScale(), CPU)
    model = DistributedDataParallel(precision.cast(network()))
    optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=1.0))
    mine = inputs.chunk(RANKS)[rank].chunk(2)
    with model.no_sync(), precision.forward():
        loss = model(mine[0]).float().square().mean() / 2
        precision.backward(loss)
    with precision.forward():
        loss = model(mine[1]).float().square().mean() / 2
    precision.backward(loss)
    precision.step(optimizer)

    alone = network()
    alone(inputs).square().mean().backward()
    for master, parameter in zip(optimizer.param_groups[0]["params"], alone.parameters(), strict=True):
        assert torch.allclose(master, parameter.detach() - parameter.grad, atol=0.01)


def one_weight(precision, wrap=True, **options):
    """A weight of 0 in DDP, whose gradient is its input."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    model = DistributedDataParallel(precision.cast(net), **options)
    optimizer = precision.optimizer(model if wrap else net, torch.optim.SGD(net.parameters(), lr=1.0))
    return net, model, optimizer


def backward(precision, model, gradient, last):
    with contextlib.nullcontext() if last else model.no_sync():
        with precision.forward():
            loss = model(precision.input(torch.full((1, 1), gradient))).float().sum()
        precision.backward(loss)


def equal_gradients_add_up(rank, dtype, bucket_view=False):
    """512 micro-batches of 1/512 each: half precision stops at a half."""
    precision = Precision.of(Amp(level="o2", dtype=dtype), LossScale(mode="none"), CPU)
    net, model, optimizer = one_weight(precision, gradient_as_bucket_view=bucket_view)
    for _ in range(2):  # DDP forms its buckets anew after the first reduction
        for micro in range(512):
            backward(precision, model, 2.0**-9, last=micro == 511)
        assert net.weight.grad.item() == 1.0
        assert precision.step(optimizer, clip=1e9).grad_norm.item() == 1.0
        optimizer.zero_grad()
    assert optimizer.param_groups[0]["params"][0].item() == -2.0


def ranks_are_summed_in_float32(rank):
    """256 on one rank, 1 and 1 and 1 on the other: 259 is no bfloat16, nor is its half."""
    precision = Precision.of(Amp(level="o2", dtype="bfloat16"), LossScale(mode="none"), CPU)
    net, model, optimizer = one_weight(precision)
    for micro in range(3):
        backward(precision, model, 1.0 if rank else 256.0 * (micro == 0), last=micro == 2)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 129.5
    backward(precision, model, 1.0, last=True)  # on top of what was not cleared, which is rounded
    backward(precision, model, 1.0, last=True)
    assert net.weight.grad.dtype == torch.bfloat16
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 130.0 + 2.0
    model.zero_grad()
    backward(precision, model, 1.0, last=True)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 1.0


def a_model_with_norms_and_unused_parts(rank):
    """As one rank with all the data would: other dtypes in other buckets, and a part that one rank doesn't use."""
    precision = Precision.of(Amp(level="o2", dtype="bfloat16"), LossScale(mode="none"), CPU)
    parts = nn.ModuleDict({"body": network(), "more": nn.Linear(4, 4), "idle": nn.Linear(4, 4)})

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def forward(self, inputs, more):
            found = self.parts["body"](inputs)
            return self.parts["more"](found) if more else found

    net = precision.cast(Sometimes())
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = precision.optimizer(model, torch.optim.SGD(net.parameters(), lr=0.1))
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            with contextlib.nullcontext() if micro else model.no_sync():
                with precision.forward():
                    loss = model(precision.input(inputs), more=rank == 0 and micro == 0).float().square().mean()
                precision.backward(loss)
        precision.step(optimizer, clip=1.0)
    assert parts["idle"].weight.grad is None
    assert parts["more"].weight.grad is not None
    masters = list(precision.master_parameters().values())
    assert torch.equal(*everywhere(masters))
    assert {each.dtype for each in masters} == {torch.float32}


def a_model_given_without_its_wrapper_still_agrees(rank):
    """Nobody told of DDP: torch's own sums, in half precision, which the proof sees."""
    precision = Precision.of(Amp(level="o2", dtype="bfloat16"), LossScale(mode="none"), CPU)
    _, model, optimizer = one_weight(precision, wrap=False)
    for micro in range(3):
        backward(precision, model, float(rank + micro), last=micro == 2)
    precision.step(optimizer)
    assert torch.equal(*everywhere([optimizer.param_groups[0]["params"][0]]))


def a_communication_hook_of_ones_own_is_refused(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    precision = Precision.of(Amp(level="o2"), LossScale(), CPU)
    model = DistributedDataParallel(precision.cast(network()))
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(RuntimeError, match=r"reduces gradients in float32 by a communication hook.*amp=o1"):
        precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))


def two_optimizers_over_one_ddp_model(rank):
    precision = Precision.of(Amp(level="o2", dtype="bfloat16"), LossScale(mode="none"), CPU)
    net, model, one = one_weight(precision)
    other = precision.optimizer(model, torch.optim.SGD(net.parameters(), lr=0.5))
    for micro in range(3):
        backward(precision, model, 256.0 if micro == 0 else 1.0, last=micro == 2)
    precision.step(one)
    precision.step(other)
    assert one.param_groups[0]["params"][0].item() == -258 * 1.5


def casting_after_wrapping_is_refused(rank):
    for level in ("o0", "o1", "o2", "o3"):
        precision = Precision.of(Amp(level=level), LossScale(), CPU)
        with pytest.raises(RuntimeError, match="already wrapped by DistributedDataParallel"):
            precision.cast(DistributedDataParallel(network()))
        with pytest.raises(RuntimeError, match="module 0 is already wrapped"):
            precision.cast(nn.Sequential(DistributedDataParallel(network())))


def casting_inside_the_wrapper_is_refused(rank):
    """It raises nothing by itself, and the ranks drift apart."""
    for level in ("o2", "o3"):
        precision = Precision.of(Amp(level=level), LossScale(), CPU)
        model = DistributedDataParallel(network())
        precision.cast(model.module)
        with pytest.raises(RuntimeError, match=r"parameter .*bfloat16, and DDP was given float: .*comes first"):
            precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    naive = DistributedDataParallel(nn.Linear(8, 4))
    naive.bfloat16()
    torch.manual_seed(rank)
    naive(torch.randn(4, 8).bfloat16()).sum().backward()
    assert not torch.equal(*everywhere([naive.module.weight.grad])), "torch has mended this: the guard can go"


def fsdp_is_refused_at_o2_and_works_by_its_own_masters_at_o1(rank):
    from torch.distributed import init_device_mesh

    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # torch 2.4 and 2.5 have it elsewhere
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh("cpu", (RANKS,))

    precision = Precision.of(Amp(level="o2"), LossScale(), CPU)
    model = precision.cast(nn.Linear(8, 4))
    fully_shard(model, mesh=mesh)
    with pytest.raises(RuntimeError, match=r"doesn't work with FSDP.*amp=o1"):
        precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="already wrapped by FSDP"):
        precision.cast(model)

    if torch.__version__ < "2.9":
        return  # on a CPU it doesn't train there
    precision = Precision.of(Amp(level="o1", dtype="float16"), LossScale(), CPU)
    model = precision.cast(network())
    policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    applied = []
    for step in range(3):
        inputs = torch.randn(4, 8) * (torch.inf if step == 1 and rank == 1 else 1.0)
        optimizer.zero_grad()
        with precision.forward():
            loss = model(inputs).float().square().mean()
        precision.backward(loss)
        applied.append(precision.step(optimizer).applied)
        precision.update()
    assert applied == [True, False, True]
    assert precision.scale == 2.0**15


def replicas_are_rounded_alike(rank):
    """Though each rank seeds torch otherwise, has other data, and rounds at random."""
    precision = Precision.of(Amp(level="o3", dtype="bfloat16", rounding="stochastic"), LossScale(), CPU)
    model = DistributedDataParallel(precision.cast(network()))
    torch.manual_seed(rank + 1)
    optimizer = precision.optimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    start = everywhere(model.parameters())[0]
    for step in range(3):
        optimizer.zero_grad()
        with precision.forward():
            loss = precision.output(model(precision.input(torch.randn(4, 8)))).square().mean()
        precision.backward(loss)
        precision.step(optimizer, clip=1.0)
        precision.update()
        assert torch.equal(*everywhere(model.parameters())), f"weights differ after step {step}"
    assert not torch.equal(everywhere(model.parameters())[0], start)


SCENARIOS = {
    "masters-float16": lambda rank: masters_under_accumulation(rank, "float16"),
    "masters-bfloat16": lambda rank: masters_under_accumulation(rank, "bfloat16"),
    "masters-alike": masters_begin_alike,
    "averaged": micro_batches_are_averaged_over_the_ranks,
    "equal-gradients-float16": lambda rank: equal_gradients_add_up(rank, "float16"),
    "equal-gradients-bfloat16": lambda rank: equal_gradients_add_up(rank, "bfloat16"),
    "equal-gradients-bucket-view": lambda rank: equal_gradients_add_up(rank, "bfloat16", bucket_view=True),
    "ranks-in-float32": ranks_are_summed_in_float32,
    "norms-and-unused": a_model_with_norms_and_unused_parts,
    "stochastic-rounding": replicas_are_rounded_alike,
    "without-wrapper": a_model_given_without_its_wrapper_still_agrees,
    "own-hook": a_communication_hook_of_ones_own_is_refused,
    "two-optimizers": two_optimizers_over_one_ddp_model,
    "cast-after-ddp": casting_after_wrapping_is_refused,
    "cast-inside-ddp": casting_inside_the_wrapper_is_refused,
    "fsdp": fsdp_is_refused_at_o2_and_works_by_its_own_masters_at_o1,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return problems(__name__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks(outcomes, name):
    assert outcomes[name] == ""
