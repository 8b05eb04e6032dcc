"""Two ranks over gloo: masters that stay in step, and the orders of wrapping that are refused."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from amp_launcher.torch import Precision
from tests.amp_launcher.torch.loops import UNSCALED, accumulate, backward, of, one_weight, same, sgd, step, stepped
from tests.amp_launcher.torch.scenarios import RANKS


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


def of_all_ranks(tensors):
    """Each rank's values of all the tensors, one after another."""
    mine = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    gathered = [torch.empty_like(mine) for _ in range(RANKS)]
    distributed.all_gather(gathered, mine)
    return gathered


def same_on_all_ranks(tensors):
    return torch.equal(*of_all_ranks(tensors))


def masters_under_accumulation(rank, dtype):
    """Four steps of three micro-batches each, other data on each rank; the third overflows on rank 1 in float16."""
    precision = of("o2", dtype)
    model = DistributedDataParallel(precision.prepare(network()))
    optimizer = precision.prepare(sgd(model, momentum=0.9))
    start = [weight.clone() for weight in stepped(optimizer)]
    generator = torch.Generator().manual_seed(rank)
    applied = []

    def loss_of(outputs):
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert not gradients or not same_on_all_ranks(gradients), "reduced before the last micro-batch"
        return outputs.square().mean() / 3

    for number in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(3, 4, 8, generator=generator)
        if dtype == "float16" and number == 2 and rank == 1:
            inputs = inputs * torch.inf
        accumulate(precision, model, inputs, loss_of)
        applied.append(precision.step(optimizer, clip=10.0).applied)
        assert same_on_all_ranks(stepped(optimizer)), f"masters differ after step {number}"
        assert same_on_all_ranks(model.parameters())
    assert applied == [True, True, dtype != "float16", True]
    assert precision.scale == (2.0**15 if dtype == "float16" else None)
    assert not same(stepped(optimizer), start)


def masters_begin_alike(rank):
    """With the weights from before the cast where the ranks agree on them, else with the rounded ones that DDP sent."""
    for seed, unrounded in ((0, True), (rank, False)):
        precision = of("o2")
        torch.manual_seed(seed)
        plain = nn.Linear(8, 4)
        before = plain.weight.detach().clone()
        model = DistributedDataParallel(precision.prepare(plain))
        master = stepped(precision.prepare(sgd(model)))[0]
        assert same_on_all_ranks([master])
        assert torch.equal(master, before if unrounded else plain.weight.float())
        assert not torch.equal(before, before.bfloat16().float())


def micro_batches_are_averaged_over_the_ranks(rank):
    """One step over both ranks' micro-batches moves the masters as one rank with all of them would."""
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(7))
    precision = of("o2")
    model = DistributedDataParallel(precision.prepare(network()))
    optimizer = precision.prepare(sgd(model, lr=1.0))
    accumulate(precision, model, inputs.chunk(RANKS)[rank].chunk(2), lambda outputs: outputs.square().mean() / 2)
    precision.step(optimizer)

    alone = network()
    alone(inputs).square().mean().backward()
    for master, parameter in zip(stepped(optimizer), alone.parameters(), strict=True):
        assert torch.allclose(master, parameter.detach() - parameter.grad, atol=0.01)


def equal_gradients_add_up(rank, dtype, bucket_view=False):
    """512 micro-batches of 1/512 each: half precision stops at a half."""
    weight = one_weight("o2", dtype, start=0.0, ddp=True, gradient_as_bucket_view=bucket_view)
    for _ in range(2):  # DDP forms its buckets anew after the first reduction
        weight.backward(*[2.0**-9] * 512)
        assert weight.net.weight.grad.item() == 1.0
        assert weight.norm() == 1.0
        weight.optimizer.zero_grad()
    assert weight.master == -2.0


def ranks_are_summed_in_float32(rank):
    """256 on one rank, 1 and 1 and 1 on the other: 259 is no bfloat16, nor is its half."""
    weight = one_weight(start=0.0, ddp=True)
    weight.backward(*([1.0] * 3 if rank else [256.0, 0.0, 0.0]))
    assert weight.norm() == 129.5
    weight.backward(1.0)  # on top of what was not cleared, which is rounded
    weight.backward(1.0)
    assert weight.net.weight.grad.dtype == torch.bfloat16
    assert weight.norm() == 130.0 + 2.0
    weight.model.zero_grad()
    weight.backward(1.0)
    assert weight.norm() == 1.0


class Sometimes(nn.Module):
    """Other dtypes in other buckets, and a part that one rank doesn't use."""

    def __init__(self):
        super().__init__()
        self.body, self.more, self.idle = network(), nn.Linear(4, 4), nn.Linear(4, 4)
        self.forwards = 0

    def forward(self, inputs):
        hidden = self.body(inputs)
        self.forwards += 1
        return self.more(hidden) if self.forwards % 2 and distributed.get_rank() == 0 else hidden


def a_model_with_norms_and_unused_parts(rank):
    precision = of("o2", "bfloat16", UNSCALED)
    net = precision.prepare(Sometimes())
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = precision.prepare(sgd(net))
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        optimizer.zero_grad()
        accumulate(precision, model, [inputs, inputs])
        precision.step(optimizer, clip=1.0)
    assert net.idle.weight.grad is None
    assert net.more.weight.grad is not None
    masters = list(precision.master_parameters().values())
    assert same_on_all_ranks(masters)
    assert {master.dtype for master in masters} == {torch.float32}


def a_model_wrapped_after_it_was_prepared_with_its_optimizer_is_summed_in_float32(rank):
    precision = of("o2", "bfloat16", UNSCALED)
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    net, optimizer = precision.prepare(net, sgd(net, 1.0))
    accumulate(precision, DistributedDataParallel(net), [torch.full((1, 1), value) for value in (256.0, 1.0, 1.0)], sum)
    precision.step(optimizer)
    assert stepped(optimizer)[0].item() == -258


def a_communication_hook_of_ones_own_is_refused(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    precision = of("o2")
    model = DistributedDataParallel(precision.prepare(network()))
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(RuntimeError, match=r"reduces gradients in float32 by a communication hook.*amp=o1"):
        backward(precision, model, torch.randn(4, 8))


def two_optimizers_over_one_ddp_model(rank):
    weight = one_weight(start=0.0, ddp=True)
    other = weight.another(0.5)
    weight.backward(256.0, 1.0, 1.0)
    weight.precision.step(weight.optimizer)
    weight.precision.step(other)
    assert weight.master == -258 * 1.5


def casting_after_wrapping_is_refused(rank):
    for level in ("o0", "o1", "o2", "o3"):
        with pytest.raises(RuntimeError, match="module 0 is already wrapped by DistributedDataParallel"):
            of(level).prepare(nn.Sequential(DistributedDataParallel(network())))


def casting_inside_the_wrapper_is_refused(rank):
    """It raises nothing by itself, and the ranks drift apart."""
    for level in ("o2", "o3"):
        precision = of(level)
        model = DistributedDataParallel(network())
        precision.prepare(model.module)
        with pytest.raises(RuntimeError, match=r"parameter .*bfloat16, and DDP was given float: .*comes first"):
            backward(precision, model, torch.randn(4, 8))
    naive = DistributedDataParallel(nn.Linear(8, 4))
    naive.bfloat16()
    torch.manual_seed(rank)
    naive(torch.randn(4, 8).bfloat16()).sum().backward()
    assert not same_on_all_ranks([naive.module.weight.grad]), "torch has mended this: the guard can go"


def fsdp_is_refused_at_o2_and_works_by_its_own_masters_at_o1(rank):
    from torch.distributed import init_device_mesh

    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # torch 2.4 and 2.5 have it elsewhere
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh("cpu", (RANKS,))

    precision = of("o2")
    model = precision.prepare(nn.Linear(8, 4))
    fully_shard(model, mesh=mesh)
    with pytest.raises(RuntimeError, match=r"doesn't work with FSDP.*say amp=o1 and hand"):
        precision.prepare(sgd(model))
    precision, model = of("o2"), network()
    precision.prepare(model, sgd(model))
    fully_shard(model, mesh=mesh)
    with pytest.raises(RuntimeError, match=r"doesn't work with FSDP.*say amp=o1 and hand"):
        backward(precision, model, torch.randn(4, 8))
    with pytest.raises(RuntimeError, match="already wrapped by FSDP"):
        of("o2").prepare(model)
    if find_spec("torchao"):
        precision = Precision("fp8", device="cpu")
        model = precision.prepare(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 16)))
        fully_shard(model, mesh=mesh)
        with pytest.raises(RuntimeError, match=r"^amp=fp8 makes.*say amp=o1 amp.gemm=fp8-tensorwise and hand"):
            precision.prepare(sgd(model))
    precision = of("o1")
    model = nn.Linear(8, 4)
    _, optimizer = precision.prepare(model, sgd(model))
    fully_shard(model, mesh=mesh)
    with pytest.raises(RuntimeError, match=r"fully_shard\(model\) replaced the parameters.*then optimizer ="):
        backward(precision, model, torch.randn(4, 8))

    if torch.__version__ < "2.9":
        return  # on a CPU it doesn't train there
    precision = of("o1", "float16")
    model = precision.prepare(network())
    policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = precision.prepare(sgd(model))
    factors = [1.0, torch.inf if rank == 1 else 1.0, 1.0]
    applied = [step(precision, model, optimizer, torch.randn(4, 8) * factor).applied for factor in factors]
    assert applied == [True, False, True]
    assert precision.scale == 2.0**15


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
    "without-wrapper": a_model_wrapped_after_it_was_prepared_with_its_optimizer_is_summed_in_float32,
    "own-hook": a_communication_hook_of_ones_own_is_refused,
    "two-optimizers": two_optimizers_over_one_ddp_model,
    "cast-after-ddp": casting_after_wrapping_is_refused,
    "cast-inside-ddp": casting_inside_the_wrapper_is_refused,
    "fsdp": fsdp_is_refused_at_o2_and_works_by_its_own_masters_at_o1,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks(outcomes, name):
    assert outcomes[name] == ""
