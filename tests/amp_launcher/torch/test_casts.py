"""What a prepared model takes and gives, in each structure that people pass."""

from __future__ import annotations

import collections
import copy
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import CausalLMOutput

from amp_launcher.torch import Precision


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


@dataclass(frozen=True)
class Frozen:
    values: torch.Tensor
    nested: dict[str, Any] = field(default_factory=dict)
    derived: int = field(default=0, init=False)


class Echo(nn.Module):
    """Gives back what it takes, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, *given: Any, **named: Any) -> Any:
        self.taken = tuple(map(copy.copy, (*given, *named.values())))
        return next(iter((*given, *named.values())))


HALF, FULL = torch.bfloat16, torch.float32
STRUCTURES = {
    "tensor": lambda x: x,
    "list in a tuple": lambda x: ([x, 1], "a", None),
    "named tuple": lambda x: Pair(x, [x]),
    "dictionary": lambda x: {"x": x, "n": torch.arange(3), "more": {"y": x}},
    "ordered dictionary": lambda x: collections.OrderedDict(x=x),
    "frozen dataclass": lambda x: Frozen(x, {"y": x}),
    "ModelOutput": lambda x: CausalLMOutput(loss=x.sum(), logits=x, hidden_states=(x, x)),
    "BatchEncoding": lambda x: BatchEncoding({"input_ids": torch.arange(3), "x": x}),
    "packed sequence": lambda x: pack_sequence([x[0], x[1][:1]]),
}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Frozen):
        return tensors([value.values, value.nested])
    if isinstance(value, collections.abc.Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, (list, tuple)) else []


@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_come_in_the_modes_dtype_and_outputs_in_float32_in_what_they_came_in(name: str) -> None:
    model = Precision("bf16-true", device="cpu").prepare(Echo())
    given = STRUCTURES[name](torch.ones(2, 2))
    floats = [tensor for tensor in tensors(given) if tensor.is_floating_point()]
    for output, taken in ((model(given), model.taken[0]), (model(keyword=given), model.taken[0])):
        assert type(taken) is type(output) is type(given)
        moved = [tensor for tensor in tensors(taken) if tensor.is_floating_point()]
        back = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
        assert len(moved) == len(back) == len(floats) > 0
        assert {tensor.dtype for tensor in moved} == {HALF} and {tensor.dtype for tensor in back} == {FULL}
        assert len(tensors(taken)) == len(tensors(given))  # integers too
    assert {tensor.dtype for tensor in floats} == {FULL}  # the caller's own are as they were


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_prepared_model_cast_too(again: Any) -> None:
    model = again(Precision("bf16-true", device="cpu").prepare(Echo()))
    assert model(torch.ones(2)).dtype == FULL and model.taken[0].dtype == HALF


@pytest.mark.parametrize("mode", ["o0", "o1", "o2"])
def test_inputs_are_left_to_autocast_and_other_dtypes_alone(mode: str) -> None:
    precision = Precision(mode, device="cpu")
    model = precision.prepare(Echo())
    given = (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.complex64), torch.ones(2), torch.arange(2))
    with precision:
        assert [tensor.dtype for tensor in model(given)] == [tensor.dtype for tensor in given]
    assert all(taken is tensor for taken, tensor in zip(model.taken[0], given, strict=True))


class Writing(Echo):
    """Writes its result into the mapping that it takes, as the modules of tensordict do."""

    def forward(self, given: Any) -> Any:
        given["y"] = self.layer(given["x"])
        return given


@pytest.mark.parametrize("mode", ["o1", "o2"])
@pytest.mark.parametrize("kind", [dict, collections.UserDict])
def test_a_mapping_that_the_model_writes_into_and_returns_is_the_callers_own(kind: Any, mode: str) -> None:
    precision = Precision(mode, device="cpu")
    model, given = precision.prepare(Writing()), kind(x=torch.ones(2, 2))
    with precision:
        assert model(given) is given
    assert {name: tensor.dtype for name, tensor in given.items()} == {"x": FULL, "y": FULL}


class Naming(Echo):
    """Names its buffers by paths, as tensordict's TensorDictParams does."""

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        return ((f"nested.{name}", buffer) for name, buffer in super().named_buffers(*args, **kwargs))


@pytest.mark.parametrize("kind", [Echo, Naming])
def test_buffers_are_cast_at_o3_whatever_their_names(kind: type[Echo]) -> None:
    model = kind()
    model.register_buffer("mean", torch.ones(2))
    assert Precision("o3", device="cpu").prepare(model).mean.dtype == HALF


@pytest.mark.parametrize("mode", ["o0", "o1", "o2", "o3"])
def test_two_optimizers_that_step_together_are_clipped_by_one_norm(mode: str) -> None:
    net = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(2))
    for part in net:
        nn.init.ones_(part.weight)
    precision = Precision(mode, device="cpu")
    optimizers = [torch.optim.SGD(part.parameters(), lr=1.0) for part in net]
    _, *optimizers = precision.prepare(net, *optimizers)
    for steps in (1, 2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with precision:
            loss = 3 * net[0].weight.float().sum() + 4 * net[1].weight.float().sum()
        precision.backward(loss)
        outcome = precision.step(*optimizers, clip=1.0)
        assert outcome.grad_norm is not None and outcome.grad_norm.item() == pytest.approx(10.0, rel=0.01)
        moved = [1.0 - weights.float() for weights in precision.master_parameters().values()]
        for weights, gradient in zip(moved, (3, 4), strict=True):
            torch.testing.assert_close(weights, torch.full((1, 4), steps * gradient / 10), rtol=0.02, atol=0.0)
