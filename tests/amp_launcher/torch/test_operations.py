"""Operation lists: autocast's own on CUDA, by fake tensors, and ours on top of them, eager and compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from amp_launcher.precision import operations
from amp_launcher.torch.precision.operation_lists import OTHER_SPELLINGS, OperationLists
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import HALVES, of


def fake(*shape):
    """A float32 tensor on a GPU that need not be there."""
    return torch.empty(*shape, device="cuda")


# Of each of CUDA's autocast lists, from torch's documentation ("CUDA Op-Specific Behavior"): those that run in half
# precision, in float32, and in the dtype of their input.
EVERYTHING = {
    "linear": lambda x, half: functional.linear(x, x),
    "matmul": lambda x, half: x @ x,
    "mm": lambda x, half: torch.mm(x, x),
    "einsum": lambda x, half: torch.einsum("ab,bc->ac", x, x),
    "conv2d": lambda x, half: functional.conv2d(fake(1, 1, 8, 8), fake(1, 1, 3, 3)),
    "scaled_dot_product_attention": lambda x, half: functional.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x, half: functional.softmax(half, -1),
    "exp": lambda x, half: half.exp(),
    "layer_norm": lambda x, half: functional.layer_norm(half, (16,), fake(16), fake(16)),
    "group_norm": lambda x, half: functional.group_norm(half, 4, fake(16), fake(16)),
    "sum": lambda x, half: half.sum(),
    "pow": lambda x, half: half**2,
    "cumsum": lambda x, half: half.cumsum(0),
    "mse_loss": lambda x, half: functional.mse_loss(half, half),
    "cross_entropy": lambda x, half: functional.cross_entropy(half, half),
    "gelu": lambda x, half: functional.gelu(half),
    "relu": lambda x, half: functional.relu(half),
    "mean": lambda x, half: half.mean(),
    "instance_norm": lambda x, half: functional.instance_norm(fake(2, 4, 8).to(half.dtype)),
}


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def cuda_autocast(request):
    """CUDA's real autocast policy on fake tensors: a float32 matrix, the same in half precision, and the dtype."""
    if torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("a CUDA build asks the driver about the GPU even for fake tensors")
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", request.param)
        try:
            matrix = fake(16, 16)
            yield matrix, matrix.to(request.param), request.param
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


def test_our_lists_move_one_operation_and_leave_all_others_where_cudas_lists_have_them(cuda_autocast):
    matrix, half, dtype = cuda_autocast

    def dtypes(allow=(), deny=()):
        with OperationLists(allow, deny, dtype, "cuda"):
            result = {name: compute(matrix, half).dtype for name, compute in EVERYTHING.items()}
            assert torch.is_autocast_enabled("cuda")
        return result

    plain = dtypes()
    assert {*plain.values()} == {dtype, torch.float32}
    for name in EVERYTHING:
        assert dtypes(deny=(name,)) == {**plain, name: torch.float32}
        assert dtypes(allow=(name,)) == {**plain, name: dtype}


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("add", [lambda x: x + x, lambda x: 1.0 + x, lambda x: torch.add(x, x), lambda x: x.add(x)]),
        ("sub", [lambda x: x - x, lambda x: 1.0 - x, lambda x: torch.subtract(x, x), lambda x: torch.rsub(x, x)]),
        ("mul", [lambda x: x * x, lambda x: 2.0 * x, lambda x: torch.multiply(x, x)]),
        ("div", [lambda x: x / x, lambda x: 1.0 / x, lambda x: torch.true_divide(x, x)]),
        ("pow", [lambda x: x**2, lambda x: 2.0**x, lambda x: torch.pow(x, 2)]),
        ("matmul", [lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x)]),
        ("softmax", [lambda x: x.softmax(0), lambda x: functional.softmax(x, 0), lambda x: torch.softmax(x, 0)]),
        ("norm", [lambda x: x.norm(), lambda x: torch.norm(x), lambda x: torch.linalg.norm(x)]),
        ("norm", [lambda x: torch.linalg.vector_norm(x), lambda x: torch.linalg.matrix_norm(x)]),
        ("multi_dot", [lambda x: torch.linalg.multi_dot([x, x, x])]),
    ],
)
def test_every_spelling_of_an_operation_is_on_its_list(name, spellings):
    half = torch.ones(4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), OperationLists((), (name,), torch.bfloat16, "cpu"):
        assert [run(half).dtype for run in spellings] == [torch.float32] * len(spellings)


def test_every_name_is_something_that_torch_has():
    places = (torch, functional, torch.Tensor, torch.linalg, torch._VF)
    missing = [name for name in operations.TORCH if not any(hasattr(place, name) for place in places)]
    assert not missing
    assert set(OTHER_SPELLINGS) <= operations.TORCH


def test_running_statistics_are_written_although_batch_norm_is_on_a_list():
    norm = nn.BatchNorm1d(4)
    with OperationLists(("batch_norm",), (), torch.bfloat16, "cpu"):
        result = norm(torch.full((8, 4), 3.0))
    assert result.dtype == torch.bfloat16
    assert norm.running_mean.tolist() == pytest.approx([0.3] * 4)
    assert norm.running_mean.dtype == torch.float32


def test_in_place_forms_write_to_their_own_operand():
    half = torch.ones(3, dtype=torch.bfloat16)
    with OperationLists((), ("add",), torch.bfloat16, "cpu"):
        half.add_(1)
        half += 1
        torch.add(half, half, out=half)
    assert half.tolist() == [6.0] * 3


def test_gradients_pass_through_the_casts():
    weight = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    with OperationLists((), ("linear",), torch.bfloat16, "cpu"):
        functional.linear(torch.ones(1, 2), weight).sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.tolist() == [[1.0, 1.0]] * 2


# By the level


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(16, 16)
        self.two = nn.Linear(16, 16)

    def forward(self, inputs):
        hidden = functional.relu(self.one(inputs))
        product = torch.matmul(hidden, self.two.weight)
        return hidden, product, product.softmax(-1), product + 1


def run(level, dtype, **lists):
    torch.manual_seed(0)
    precision = of(level, dtype, **lists)
    model = precision.prepare(Model())
    with precision:
        results = model.forward(torch.linspace(-1, 1, 64).reshape(4, 16))  # without what makes outputs float32
    sum(result.float().sum() for result in results).backward()
    return results, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("level", ["o1", "o2"])
@pytest.mark.parametrize("dtype", HALVES)
def test_lists_decide_the_dtype_of_each_operation(level, dtype):
    half, single = getattr(torch, dtype), torch.float32
    plain, _ = run(level, dtype)
    listed, gradients = run(level, dtype, allow=("softmax",), deny=("linear", "elementwise_add"))
    assert [result.dtype for result in plain] == [half, half, half, half]
    assert [result.dtype for result in listed] == [single, half, half, single]
    assert not torch.equal(plain[0], listed[0])
    assert {gradient.dtype for gradient in gradients} == {half if level == "o2" else single}


# What no mode can reach


def test_a_list_that_attention_would_hide_from_is_refused_at_the_cast():
    def attention():
        return nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2)})

    message = r"amp\.deny: linear can't be had inside attention.*keep_fp32=\[attention\]"
    with pytest.raises(SettingsError, match=message):
        of("o1", deny=("linear",)).prepare(attention())
    of("o1", deny=("conv2d",)).prepare(attention())
    of("o1", deny=("linear",), keep_fp32=("attention",)).prepare(attention())


def test_the_refusal_is_needed_as_attention_does_hide():
    """If this fails, torch's attention has come within reach of function modes and the refusal can go."""
    seen = []

    class Watch(OperationLists):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs)

    inputs = torch.ones(3, 2, 8)
    with Watch((), ("linear",), torch.bfloat16, "cpu"):
        nn.MultiheadAttention(8, 2)(inputs, inputs, inputs)
    assert "multi_head_attention_forward" in seen
    assert "linear" not in seen
