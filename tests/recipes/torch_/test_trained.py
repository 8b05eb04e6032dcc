"""The state of a run by the names of its parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from recipes.precision.levels import Amp, LossScale
from recipes.torch_ import resharding
from recipes.torch_.precision import Precision
from recipes.torch_.trained import Trained
from recipes.typed import SettingsError


def trained(level: str, order: int = 1, make=torch.optim.AdamW, **amp) -> Trained:
    """After a step; its optimizer has a group for each of two layers, in this order."""
    torch.manual_seed(0)
    precision = Precision.of(Amp(level=level, **amp), LossScale(), torch.device("cpu"))
    model = precision.cast(nn.ModuleDict({"one": nn.Linear(4, 6), "two": nn.Linear(4, 6)}))
    groups = [
        {"params": list(each.parameters())[::order], "lr": rate}
        for each, rate in zip(model.values(), (0.1, 0.2), strict=True)
    ]
    optimizer = precision.optimizer(model, make(groups[::order]))
    with precision.forward():
        inputs = precision.input(torch.ones(2, 4))
        loss = sum(number * precision.output(each(inputs)).sum() for number, each in enumerate(model.values(), 1))
    precision.backward(loss)
    precision.step(optimizer)
    return Trained(model=model, optimizers=[optimizer], precision=precision)


@pytest.mark.parametrize(
    ("level", "amp"), [("o0", {}), ("o1", {}), ("o2", {}), ("o3", {}), ("o3", {"rounding": "stochastic"})], ids=str
)
def test_groups_and_parameters_in_another_order_take_their_own_state(level, amp):
    one, other = trained(level, **amp), trained(level, order=-1, **amp)
    saved = copy.deepcopy(one.state())
    assert list(saved["optimizers"][0]["state"]) == ["one.weight", "one.bias", "two.weight", "two.bias"]
    other.load(saved)
    again = other.state()
    assert [group["lr"] for group in again["optimizers"][0]["groups"]] == [0.2, 0.1]
    for name, entries in saved["optimizers"][0]["state"].items():
        for key, value in entries.items():
            assert torch.equal(again["optimizers"][0]["state"][name][key], value), (name, key)
    assert all(torch.equal(again["model"][name], each) for name, each in saved["model"].items())
    assert again["precision"]["masters"].keys() == saved["precision"]["masters"].keys()


def test_an_optimizer_of_other_parameters_is_refused():
    saved = trained("o0").state()
    saved["optimizers"][0]["groups"][0]["params"].remove("one.bias")
    with pytest.raises(ValueError, match="its optimizer 0 steps other parameters"):
        trained("o0").load(saved)


class RowSums(torch.optim.SGD):
    """Keeps a value for each row of a matrix, as Adafactor does, which torch's own can't do in shards."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim == 2:
                self.state[parameter]["row_sum"] = parameter.grad.sum(1)


def test_an_optimizer_whose_state_has_other_shapes_is_refused_in_shards(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        precision = Precision.of(Amp(level="o0"), LossScale(), torch.device("cpu"))
        model = fully_shard(precision.cast(nn.Linear(4, 6)))
        optimizer = RowSums(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        with pytest.raises(SettingsError, match=r"RowSums keeps row_sum of weight in another shape.*parallel=ddp"):
            resharding.take_apart(Trained(model=model, optimizers=[optimizer], precision=precision))
    finally:
        distributed.destroy_process_group()
