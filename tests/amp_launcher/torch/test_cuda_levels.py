"""What CUDA's own autocast makes of each network at each level. By fake tensors, which have a dtype and a device and
no numbers: no kernel runs, and nothing here needs a GPU or says anything of one."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from amp_launcher.recipes.gan import GanSettings
from amp_launcher.recipes.gan import train_torch as gan
from amp_launcher.recipes.mnist import MnistSettings
from amp_launcher.recipes.mnist import train_torch as mnist
from amp_launcher.recipes.resnet50 import Resnet50Settings
from amp_launcher.recipes.resnet50 import train_torch as resnet50
from amp_launcher.recipes.simplenet import SimplenetSettings
from amp_launcher.recipes.simplenet import train_torch as simplenet
from amp_launcher.torch.precision.tf32 import has_new_switches, switch_tf32
from tests.amp_launcher.torch.loops import HALVES, of

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build asks the driver even for fake tensors"),
    pytest.mark.skipif(not has_new_switches(), reason="came with torch 2.9"),
]

GPU = torch.device("cuda")
MODES = [("o0", "auto"), *itertools.product(("o1", "o2", "o3"), HALVES)]
PRODUCTS = {"convolution", "addmm", "mm"}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "simplenet": (lambda: simplenet.Net(SimplenetSettings(width=64)), (8, 64)),
    "mnist": (lambda: mnist.Net(MnistSettings()), (8, 1, 28, 28)),
    "resnet50": (lambda: resnet50.Net(Resnet50Settings(width=8, classes=10)), (2, 3, 64, 64)),
    "generator": (lambda: gan.Generator(GanSettings()), (8, 100)),
    "discriminator": (lambda: gan.Discriminator(), (8, 1, 28, 28)),
}


class Operands(TorchDispatchMode):
    """Each operation's name, with the dtypes of its first floating-point operand in all calls. Casts are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        first = next((value for value in args if torch.is_tensor(value) and value.is_floating_point()), None)
        if first is not None and name not in ("_to_copy", "device"):
            self.dtypes[name].add(first.dtype)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch takes it that there is a GPU of capability 9.0, whose tensors are fake; switches are put back."""
    owners = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [owner.fp32_precision for owner in owners]
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # asks whether there is a GPU, so it comes before the pretence
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with fake, torch.no_grad():
        yield
    for owner, precision in zip(owners, before, strict=True):
        owner.fp32_precision = precision
    switch_tf32(False)  # so that the old switches can be read again


def on_gpu(model: nn.Module) -> nn.Module:
    """The same with fake weights on the GPU, without gradients: for these a CPU build would ask CUDA, and abort."""
    for module in model.modules():
        for name, own in module.named_parameters(recurse=False):
            module._parameters[name] = nn.Parameter(torch.empty(own.shape, device=GPU), requires_grad=False)
        for name, own in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty(own.shape, dtype=own.dtype, device=GPU)
    return model


def forward(network: str, level: str, dtype: str) -> tuple[dict[str, set[torch.dtype]], torch.dtype]:
    """What each operation of a forward got, the loss's included; and the dtype of what the network put out."""
    precision = of(level, dtype, device=GPU)
    make, shape = NETWORKS[network]
    with torch.device("cpu"):
        net = make()
    net = precision.prepare(on_gpu(net)).eval()
    inputs = torch.empty(shape, device=GPU)
    with Operands() as operands, precision:
        out = net(inputs)
        cross_entropy(out.float().flatten(1), torch.empty(len(out), dtype=torch.int64, device=GPU))
    return operands.dtypes, out.dtype


LOSS_AND_VIEWS = {"_log_softmax", "nll_loss_forward", "t", "view", "detach", "empty", "_unsafe_view"}


@pytest.mark.parametrize(("level", "dtype"), MODES)
@pytest.mark.parametrize("network", NETWORKS)
def test_products_have_the_levels_dtype_and_of_all_else_only_the_loss_and_what_follows_an_upsampling_is_float32(
    network: str, level: str, dtype: str, gpu: None
) -> None:
    """Upsampling is on CUDA's list of operations in float32, and a norm keeps the dtype of its input."""
    operands, out = forward(network, level, dtype)
    expected = torch.float32 if level == "o0" else getattr(torch, dtype)
    products = {name: dtypes for name, dtypes in operands.items() if name in PRODUCTS}
    assert products and all(dtypes == {expected} for dtypes in products.values()), products
    assert out == torch.float32
    assert operands["_log_softmax"] == {torch.float32}
    if level in ("o1", "o2"):
        float32 = {name for name, dtypes in operands.items() if torch.float32 in dtypes} - LOSS_AND_VIEWS
        assert {name.replace("cudnn_", "native_") for name in float32} == (
            {"upsample_nearest2d", "native_batch_norm"} if network == "generator" else set()
        )
