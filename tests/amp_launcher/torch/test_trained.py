"""The state of a run by the names of its parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from amp_launcher.precision.levels import Amp
from amp_launcher.torch import digests, resharding
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.trained import Trained
from amp_launcher.typed import SettingsError


def trained(level: str, order: int = 1, make=torch.optim.AdamW, rates=(0.1, 0.2), scale=1, **amp) -> Trained:
    """After a step on inputs of this scale; its optimizer has a group for each of two layers, in this order."""
    torch.manual_seed(0)
    precision = Precision(Amp(level=level, **amp), device=torch.device("cpu"))
    model = precision.prepare(nn.ModuleDict({"one": nn.Linear(4, 6), "two": nn.Linear(4, 6)}))
    groups = [
        {"params": list(layer.parameters())[::order], "lr": rate}
        for layer, rate in zip(model.values(), rates, strict=True)
    ]
    optimizer = precision.prepare(make(groups[::order]))
    with precision:
        inputs = scale * torch.ones(2, 4)
        loss = sum(number * layer(inputs).sum() for number, layer in enumerate(model.values(), 1))
    precision.backward(loss)
    precision.step(optimizer)
    return Trained(model=model, optimizers=[optimizer], precision=precision)


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
def test_groups_and_parameters_in_another_order_take_their_own_state(level):
    one, other = trained(level), trained(level, order=-1, rates=(0.3, 0.4), scale=2)
    saved = copy.deepcopy(one.state())
    assert list(saved["optimizers"][0]["state"]) == ["one.weight", "one.bias", "two.weight", "two.bias"]
    other.load(saved)
    again = other.state()
    assert [group["lr"] for group in again["optimizers"][0]["groups"]] == [0.2, 0.1]
    for name, entries in saved["optimizers"][0]["state"].items():
        assert_equal(again["optimizers"][0]["state"][name], entries)
    assert_equal(again["model"], saved["model"])


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


def test_an_optimizer_of_other_parameters_is_refused():
    saved = trained("o0").state()
    saved["optimizers"][0]["groups"][0]["params"].remove("one.bias")
    with pytest.raises(ValueError, match="its optimizer 0 steps other parameters"):
        trained("o0").load(saved)


def test_several_empty_groups_keep_their_settings():
    def made(*rates) -> Trained:
        state = trained("o0")
        for rate in rates:
            state.optimizers[0].add_param_group({"params": [], "lr": rate})
        return state

    other = made(0.5, 0.6)
    other.load(copy.deepcopy(made(0.3, 0.4).state()))
    assert [group["lr"] for group in other.optimizers[0].param_groups] == [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(ValueError, match="its optimizer 0 steps other parameters"):
        other.load(made(0.3).state())


class Counting(torch.optim.SGD):
    """Keeps state that belongs to no parameter."""

    def step(self, closure=None):
        super().step(closure)
        self.state["all"] = {"steps": self.state.get("all", {"steps": 0})["steps"] + 1}


def test_an_optimizers_state_of_no_parameter_is_restored_and_has_a_digest():
    one, other = trained("o0", make=Counting), trained("o0", make=Counting)
    one.optimizers[0].step()
    saved = copy.deepcopy(one.state())
    assert digests.of_state(saved) != digests.of_state({**saved, "optimizers": other.state()["optimizers"]})
    other.load(saved)
    assert other.optimizers[0].state["all"] == {"steps": 2}


def test_an_optimizers_state_of_a_tensor_that_it_does_not_step_is_refused():
    one = trained("o0")
    one.optimizers[0].state[torch.ones(2)] = {"average": torch.ones(2)}
    with pytest.raises(SettingsError, match="AdamW keeps state of tensors that are in none of its groups"):
        one.state()


class WithOwnState(torch.optim.SGD):
    def state_dict(self):
        return {**super().state_dict(), "more": 1}


def test_an_optimizer_with_a_state_dict_of_its_own_is_refused_before_it_trains():
    with pytest.raises(SettingsError, match=r"WithOwnState.*state_dict.*take another optimizer"):
        trained("o0", make=WithOwnState)
    hooked = trained("o0")
    hooked.optimizers[0].register_state_dict_post_hook(lambda optimizer, state: {**state, "more": 1})
    with pytest.raises(SettingsError, match=r"AdamW.*state_dict"):
        Trained(model=hooked.model, optimizers=hooked.optimizers, precision=hooked.precision)


class Growing(nn.Linear):
    """Its extra state grows at the first forward, as TransformerEngine's does in eight bits."""

    history = torch.empty(0)

    def forward(self, inputs):
        self.history = inputs.detach().abs().amax(0)
        return super().forward(inputs)

    def get_extra_state(self):
        return self.history

    def set_extra_state(self, state):
        self.history = state


def test_extra_state_may_have_another_shape_than_in_a_fresh_model():
    def made() -> Trained:
        precision = Precision(Amp(level="o0"), device=torch.device("cpu"))
        return Trained(model=precision.prepare(Growing(4, 6)), optimizers=[], precision=precision)

    one, other = made(), made()
    one.model(torch.ones(2, 4))
    other.load(one.state())
    assert torch.equal(other.model.history, torch.ones(4))


class RowSums(torch.optim.SGD):
    """Keeps a value for each row of a matrix, as Adafactor does, which torch's own can't do in shards."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim == 2:
                self.state[parameter]["row_sum"] = parameter.grad.sum(1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (RowSums, r"RowSums keeps row_sum of weight in another shape.*parallel=ddp"),
        (Counting, r"Counting keeps state that belongs to no parameter.*parallel=ddp"),
    ],
    ids=["other-shapes", "no-parameter"],
)
def test_an_optimizer_whose_state_is_not_alike_to_parameters_is_refused_in_shards(tmp_path, make, says):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        precision = Precision(Amp(level="o0"), device=torch.device("cpu"))
        model = fully_shard(precision.prepare(nn.Linear(4, 6)))
        optimizer = make(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        with pytest.raises(SettingsError, match=says):
            resharding.split(Trained(model=model, optimizers=[optimizer], precision=precision))
    finally:
        distributed.destroy_process_group()
