"""The number formats of linear layers' matrix products (`amp.gemm`), an axis beside the level.

A linear layer multiplies three times a step: forward, and in backward once for each gradient. A format says in which
dtypes. Everything else, attention and what is left out included, stays as the level has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

Role = Literal["forward", "input_gradient", "weight_gradient"]
"""Input times weight, output gradient times weight, output gradient times input."""
ROLES: tuple[Role, ...] = ("forward", "input_gradient", "weight_gradient")

Gemm = Literal["half", "fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "fp8-delayed", "mxfp8", "nvfp4"]
HALF = "half"
"""The `amp.gemm` under which the level alone decides."""


Mechanism = Literal["torchao", "transformer_engine"]
"""The library that carries a format out, as Python imports it."""
INSTALL: Mapping[Mechanism, str] = {
    "torchao": "pip install 'amp-launcher[fp8]'",
    "transformer_engine": "pip install --no-build-isolation 'transformer_engine[pytorch]'",
}


ADD_TO_IMAGE: Mapping[Mechanism, str] = {
    "torchao": "add RUN python3 -m pip install 'torchao>=0.18' to its recipe; of an image of ours, "
    "`python -m launcher image build RECIPE container=docker pip=[torchao==0.18.0]` builds one with it; the image's "
    "torch has to be one that torchao supports",
    "transformer_engine": "NVIDIA's PyTorch images have it (image=ngc-pytorch), or add RUN python3 -m "
    f"{INSTALL['transformer_engine']} to its recipe",
}
"""How an image gets the library."""


@dataclass(frozen=True, slots=True)
class GemmFormat:
    """The dtypes of the operands by role, in torch's names, and what the format needs."""

    forward: tuple[str, str]
    """Of input and weight."""
    input_gradient: tuple[str, str]
    """Of output gradient and weight."""
    weight_gradient: tuple[str, str]
    """Of output gradient and input."""
    _: KW_ONLY
    multiple: int = 16
    """The divisor of inputs and outputs of a layer, and of the rows of a step too where the weight gradient,
    which sums over them, is not in half precision."""
    capability: tuple[int, int]
    """First compute capability whose matrix units take these operands."""
    below: tuple[int, int] | None = None
    """First compute capability for which the library has no kernels again."""
    mechanism: Mechanism
    recipe: str
    """Its name in that library."""
    oldest: tuple[int, int]
    """That library's first release that has it, and whose products an observer can tell apart."""
    cpu: bool
    """Whether torch has the kernels for a CPU."""

    def operands(self, role: Role) -> tuple[str, str]:
        """The dtypes of a role's two operands."""
        dtypes: tuple[str, str] = getattr(self, role)
        return dtypes

    @property
    def rows_matter(self) -> bool:
        """Whether the rows of a step, its tokens, must be divisible by `multiple`."""
        return "bfloat16" not in self.weight_gradient


_E4M3 = ("float8_e4m3fn", "float8_e4m3fn")
_E5M2_AND_E4M3 = ("float8_e5m2", "float8_e4m3fn")
_FP4 = ("float4_e2m1fn_x2", "float4_e2m1fn_x2")
_BF16 = ("bfloat16", "bfloat16")
"""Operands of a product."""

# Sources: torchao.float8.config.Float8LinearConfig.from_recipe_name; transformer_engine.common.recipe; NVIDIA's CUDA
# C++ Programming Guide for capabilities (Ada 8.9, Blackwell 10.0). The gradient of the output has the wider range of
# e5m2 where one scale serves a whole tensor.
# Of versions: torchao has these recipe names since 0.9, but with 0.9 and 0.10 the layer of some products could not be
# told (tried on a CPU); 0.18 is the one that the tests run. TransformerEngine's recipe module has DelayedScaling in
# 1.0, its first stable release, MXFP8BlockScaling from 2.0 on, NVFP4BlockScaling from 2.8 on. Its check_mxfp8_support
# refuses capability 12.0 and above, in 2.18 too.
_of_torchao = partial(GemmFormat, mechanism="torchao", oldest=(0, 18), capability=(8, 9), cpu=True)
_of_transformer_engine = partial(GemmFormat, mechanism="transformer_engine", cpu=False)
FORMATS: Mapping[str, GemmFormat] = {
    "fp8-tensorwise": _of_torchao(_E4M3, _E5M2_AND_E4M3, _E5M2_AND_E4M3, recipe="tensorwise"),
    "fp8-rowwise": _of_torchao(_E4M3, _E4M3, _E4M3, recipe="rowwise"),
    "fp8-rowwise-gw-hp": _of_torchao(_E4M3, _E4M3, _BF16, recipe="rowwise_with_gw_hp"),
    "fp8-delayed": _of_transformer_engine(
        _E4M3, _E5M2_AND_E4M3, _E5M2_AND_E4M3, recipe="DelayedScaling", oldest=(1, 0), capability=(8, 9)
    ),
    "mxfp8": _of_transformer_engine(
        _E4M3, _E4M3, _E4M3, recipe="MXFP8BlockScaling", oldest=(2, 0), capability=(10, 0), below=(12, 0), multiple=32
    ),
    "nvfp4": _of_transformer_engine(_FP4, _FP4, _FP4, recipe="NVFP4BlockScaling", oldest=(2, 8), capability=(10, 0)),
}
"""By the value of `amp.gemm`; half is none of them."""

OVERRIDES: Mapping[str, str] = {
    "NVTE_BACKWARD_OVERRIDE": "has TransformerEngine compute gradients in another format than its recipe's",
}
"""Variables of the environment that change formats without a setting -> what they do. TransformerEngine reads this one
from 2.15 on, when it is imported; its DelayedScaling refuses it."""


def library_problem(gemm: str, version: str) -> str:
    """Why this version of the format's library won't do, empty where it does; "" is not installed."""
    if version and not older(version, FORMATS[gemm].oldest):
        return ""
    installed = f"there is {version}" if version else "it is not installed"
    return f"amp.gemm={gemm} needs {needed(gemm)}, and {installed}"


def needed(gemm: str) -> str:
    """The format's library with its oldest version, in words."""
    wanted = FORMATS[gemm]
    return f"{wanted.mechanism} {'.'.join(map(str, wanted.oldest))} or newer"


def older(version: str, than: tuple[int, int]) -> bool:
    """Whether a version's first two numbers are lower; not where it has none, which is left to the trainer."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return len(numbers) == 2 and numbers < than
