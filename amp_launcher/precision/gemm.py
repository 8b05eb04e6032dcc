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

Gemm = Literal["half", "fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "mxfp8", "nvfp4"]
HALF = "half"
"""The `amp.gemm` under which the level alone decides."""


LIBRARY = "torchao"
"""The library that carries the formats out, as Python imports it."""
OLDEST = (0, 18)
"""Its first release that will do, and the only one for its prototypes, which change from one to the next."""
ADD_TO_IMAGE = (
    "add RUN python3 -m pip install 'torchao==0.18.*' to its recipe, which `python -m launcher image render RECIPE` "
    "prints of an image of ours; the image's torch has to be one that torchao supports"
)
"""How an image gets it."""


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
    scale: str = "float32"
    """The dtype of the numbers that the operands are scaled by, one for a tensor, a row or a block."""
    multiple: int = 16
    """The divisor of inputs and outputs of a layer, and of the rows of a step too where the weight gradient,
    which sums over them, is not in half precision."""
    capability: tuple[int, int]
    """First compute capability whose matrix units take these operands."""
    below: tuple[int, int] | None = None
    """First compute capability for which the library has no kernels again."""
    levels: tuple[str, ...] = ("o1", "o2")
    recipe: str
    """torchao's name of it, or the module and class of a prototype."""
    prototype: bool = False
    cpu: Literal["yes", "emulated", "no"] = "yes"
    """Whether torch has the kernels for a CPU, or torchao emulates them there."""

    def operands(self, role: Role) -> tuple[str, str]:
        """The dtypes of a role's two operands."""
        dtypes: tuple[str, str] = getattr(self, role)
        return dtypes

    @property
    def rows_matter(self) -> bool:
        """Whether the rows of a step, its tokens, must be divisible by `multiple`."""
        return "bfloat16" not in self.weight_gradient

    @property
    def by(self) -> str:
        """What carries it out, in words."""
        return f"a prototype of {LIBRARY}" if self.prototype else LIBRARY


_E4M3 = ("float8_e4m3fn", "float8_e4m3fn")
_E5M2_AND_E4M3 = ("float8_e5m2", "float8_e4m3fn")
_FP4 = ("float4_e2m1fn_x2", "float4_e2m1fn_x2")
_BF16 = ("bfloat16", "bfloat16")
"""Operands of a product."""

# Sources: torchao.float8.config.Float8LinearConfig.from_recipe_name; NVIDIA's CUDA C++ Programming Guide for
# capabilities (Ada 8.9, Blackwell 10.0). The gradient of the output has the wider range of e5m2 where one scale serves
# a whole tensor. torchao has the recipe names since 0.9, but with 0.9 and 0.10 the layer of some products could not be
# told (tried on a CPU); 0.18 is the one that the tests run.
# Of the prototypes, torchao 0.18's sources: mxfp8's kernels ask for capability 10.0, its layer takes only weights in
# bfloat16, blocks have 32 numbers. nvfp4's layer takes multiples of 128, and rounds by cvt.rs, which the PTX ISA has
# for capabilities 10.0 and 10.3 alone.
_prototype = partial(GemmFormat, prototype=True, capability=(10, 0))
FORMATS: Mapping[str, GemmFormat] = {
    "fp8-tensorwise": GemmFormat(_E4M3, _E5M2_AND_E4M3, _E5M2_AND_E4M3, recipe="tensorwise", capability=(8, 9)),
    "fp8-rowwise": GemmFormat(_E4M3, _E4M3, _E4M3, recipe="rowwise", capability=(8, 9)),
    "fp8-rowwise-gw-hp": GemmFormat(_E4M3, _E4M3, _BF16, recipe="rowwise_with_gw_hp", capability=(8, 9)),
    "mxfp8": _prototype(
        _E4M3,
        _E4M3,
        _E4M3,
        recipe="torchao.prototype.moe_training.mxfp8_linear.MXFP8Linear",
        scale="float8_e8m0fnu",
        multiple=32,
        levels=("o2",),
        cpu="emulated",
    ),
    "nvfp4": _prototype(
        _FP4,
        _FP4,
        _FP4,
        recipe="torchao.prototype.moe_training.nvfp4_training.nvfp4_training.NVFP4Linear",
        scale="float8_e4m3fn",
        multiple=128,
        below=(11, 0),
        cpu="no",
    ),
}
"""By the value of `amp.gemm`; half is none of them."""
QUANTIZERS = frozenset(
    "triton_to_mxfp8_dim0 mxfp8_quantize triton_rht_quantize_row_col triton_weight_quantize_2d triton_rht_amax".split()
)
"""torchao's operators by which its prototypes round an operand, the first argument; they multiply no matrices."""


def library_problem(gemm: str, version: str) -> str:
    """Why this version of torchao won't do for the format, empty where it does; "" is not installed."""
    fits = version and not older(version, OLDEST)
    if fits and not (FORMATS[gemm].prototype and not older(version, (OLDEST[0], OLDEST[1] + 1))):
        return ""
    installed = f"there is {version}" if version else "it is not installed"
    return f"amp.gemm={gemm} needs {needed(gemm)}, and {installed}"


def needed(gemm: str) -> str:
    """The version of torchao for a format, in words."""
    first = f"{LIBRARY} {'.'.join(map(str, OLDEST))}"
    return f"{first} (for a prototype in it)" if FORMATS[gemm].prototype else f"{first} or newer"


def install(gemm: str) -> str:
    """The command that installs it."""
    return "pip install 'torchao==0.18.*'" if FORMATS[gemm].prototype else "pip install 'amp-launcher[fp8]'"


def older(version: str, than: tuple[int, int]) -> bool:
    """Whether a version's first two numbers are lower; not where it has none, which is left to the trainer."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return len(numbers) == 2 and numbers < than
