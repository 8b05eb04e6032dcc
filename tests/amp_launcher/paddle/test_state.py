"""A model and its optimizer in Paddle, saved and taken up again."""

from __future__ import annotations

import io

import numpy
import paddle
import pytest
from paddle import nn

from amp_launcher.loop import array_state
from amp_launcher.paddle.state import EagerTensors


def held(kind: type = paddle.optimizer.Momentum) -> EagerTensors:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    return EagerTensors(model=net, optimizer=kind(0.1, parameters=net.parameters()))


def with_masters(kind: type = paddle.optimizer.Momentum) -> EagerTensors:
    """Half-precision weights, with the masters and velocities that Paddle makes in the first step, which a CPU's
    kernels don't take."""
    one = held(kind)
    one.model.to(dtype="bfloat16")
    one.optimizer._multi_precision = True
    return one


def make_state(one: EagerTensors) -> None:
    block = paddle.static.default_main_program().global_block()
    one.optimizer._create_accumulators(block, one.model.parameters())


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


def fill(one: EagerTensors) -> None:
    """Numbers that no new state has."""
    for master in one.optimizer._master_weights.values():
        master.set_value(master + 1e-4)
    for name, values in one.optimizer._accumulators.items():
        for number, value in enumerate(values.values()):
            value.fill_(float(number + len(name)))


@pytest.mark.parametrize("stepped", [False, True])
def test_masters_and_their_velocities_are_taken_up_by_the_names_that_parameters_have_in_the_model(stepped):
    first, second = with_masters(), with_masters()
    make_state(first)
    fill(first)
    if stepped:
        make_state(second)
    second.restore(saved(first))
    make_state(second)
    one, other = saved(first), saved(second)
    assert [name for name in one if (one[name] != other[name]).any()] == []
    assert {"master.1.weight", "accumulator.velocity.1.weight"} <= one.keys()


@pytest.mark.parametrize("kind", [paddle.optimizer.AdamW, paddle.optimizer.Momentum])
def test_what_a_script_saves_by_paddles_own_functions_has_the_masters_and_what_belongs_to_them(tmp_path, kind):
    """As docs/scripts.md has it: the model's and the optimizer's `state_dict`."""
    with paddle.utils.unique_name.guard():  # as a process that is started again names them
        first = with_masters(kind)
        make_state(first)
        fill(first)
        paddle.save([first.model.state_dict(), first.optimizer.state_dict()], str(tmp_path / "saved"))
    model, optimizer = paddle.load(str(tmp_path / "saved"))
    with paddle.utils.unique_name.guard():
        second = with_masters(kind)
        second.model.set_state_dict(model)
        second.optimizer.set_state_dict(optimizer)
        make_state(second)
    one, other = saved(first), saved(second)
    assert [name for name in one if (one[name] != other[name]).any()] == []


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
