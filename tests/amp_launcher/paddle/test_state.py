"""A model and its optimizer in Paddle, saved and taken up again."""

from __future__ import annotations

import io

import numpy
import paddle
import pytest
from paddle import nn

from amp_launcher.loop import array_state
from amp_launcher.paddle.state import EagerTensors


def held(masters: bool = False) -> EagerTensors:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=net.parameters())
    if masters:  # that a CPU's kernels don't step
        optimizer._master_weights = {weight.name: weight.astype("float32") + 1e-4 for weight in net.parameters()}
    return EagerTensors(model=net, optimizer=optimizer)


def step(one: EagerTensors) -> None:
    one.model(paddle.ones([1, 2])).sum().backward()
    one.optimizer.step()
    one.optimizer.clear_grad()


def saved(one: EagerTensors) -> dict[str, numpy.ndarray]:
    file = io.BytesIO()
    array_state.write(file, one.arrays(), {})
    file.seek(0)
    return dict(numpy.load(file))


def test_an_optimizer_that_took_no_step_yet_goes_on_with_its_momentum():
    first, second = held(), held()
    step(first)
    second.restore(saved(first))
    step(first)
    step(second)
    one, other = first.arrays(), second.arrays()
    assert one.keys() == other.keys()
    assert [name for name in one if (one[name] != other[name]).any()] == []
    assert "accumulator.velocity.1.weight" in one


def test_masters_are_saved_and_taken_up_by_the_names_that_parameters_have_in_the_model():
    first, second = held(masters=True), held(masters=True)
    second.restore(saved(first))
    for (name, one), other in zip(first.model.named_parameters(), second.model.parameters(), strict=True):
        master = second.optimizer._master_weights[other.name].numpy()
        assert (master == saved(first)[f"master.{name}"]).all()
        assert (master == one.numpy() + numpy.float32(1e-4)).all()


def test_the_state_of_another_model_is_refused():
    other = EagerTensors(model=nn.Linear(2, 2), optimizer=held().optimizer)
    with pytest.raises(ValueError, match=r"it lacks 0\.weight"):
        held().restore(saved(other))


def test_a_model_with_a_dtype_to_save_in_is_taken_up_itself_and_not_a_copy_of_it():
    first, second = held(), held()
    for tensors in (first, second):
        paddle.amp.decorate(models=tensors.model, level="O2", dtype="bfloat16", save_dtype="float16")
    second.restore(saved(first))
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert (one.astype("float32") == other.astype("float32")).all()
