"""What XLA compiled: the matrix products and convolutions of an optimized HLO module, with dtype and work.

Under XLA only this tells: on a CPU, half precision before its optimizations is float32 after them. Read is the text
that XLA dumps (https://openxla.org/xla/hlo_dumps). What a loop repeats counts once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.tensorflow_.observe.graphs import BACKWARD, Reading, call, layer_of
from recipes.tensorflow_.observe.products import PRODUCTS

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
MODULE = re.compile(r"after_optimizations\.txt$")

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """The type of one value."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One line of a computation."""

    opcode: str
    result: Array | None
    operands: list[Array | None] = field(default_factory=list)
    attributes: str = ""

    def attribute(self, pattern: str) -> str:
        """What a pattern's first group finds in the attributes, empty where it finds nothing."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


def modules(folder: Path) -> set[Path]:
    """The programs that XLA compiled so far."""
    return {path for path in folder.iterdir() if MODULE.search(path.name)} if folder.is_dir() else set()


def read(text: str, kept: str | None, device: str) -> Reading:
    """What is in a module. `kept` is what stands in the name of each operation of a layer kept in float32."""
    calls: list[dict[str, Any]] = []
    unaccounted: Counter[str] = Counter()
    listed: Counter[tuple[str, str]] = Counter()
    layers: set[str] = set()
    for each in instructions(text):
        name = each.attribute(r'op_name="([^"]*)"')
        if kept is not None:
            layers.update(layer_of(name, kept))
        target = each.attribute(r'custom_call_target="([^"]*)"')
        if not _multiplies(each.opcode, target):
            continue
        work = _flops(each, target)
        present = [operand for operand in each.operands[:2] if operand is not None]
        if work is None or len(present) < 2:
            unaccounted[target or each.opcode] += 1
            continue
        dtype = max((operand.dtype for operand in present), key=lambda name: WIDTHS.get(name, 0))
        operation = each.attribute(r'op_type="(\w+)"')
        one = call(
            target or each.opcode,
            dtype,
            work,
            backward=bool(BACKWARD.search(name)),
            kept=kept is not None and kept in name,
            device=device,
            compiled=True,
        )
        calls.append({**one, "functions": [operation] if operation in PRODUCTS else []})
        listed[operation, dtype] += 1
    return Reading(calls=calls, listed=listed, kept=layers, unaccounted=unaccounted)


def instructions(text: str) -> Iterator[Instruction]:
    """Every instruction of every computation of a module, with the types of its operands."""
    types: dict[str, Array | None] = {}
    for line in text.splitlines():
        if line.endswith("{"):
            types = {}  # names are a computation's own
        match = _INSTRUCTION.match(line)
        if not match:
            continue
        name, result, opcode, rest = match.groups()
        arguments, _, attributes = rest.partition(")")
        types[name] = _array(result)
        operands = [types.get(each) for each in _OPERAND.findall(arguments)]
        yield Instruction(opcode=opcode, result=types[name], operands=operands, attributes=attributes)


def _array(text: str) -> Array | None:
    """A type; of several, as a GPU's library calls give a workspace too, the first."""
    match = _ARRAY.search(text)
    if not match:
        return None
    shape = tuple(int(each) for each in match[2].split(",") if each)
    return Array(dtype=DTYPES.get(match[1], match[1]), shape=shape)


def _multiplies(opcode: str, target: str) -> bool:
    if opcode in ("dot", "convolution"):
        return True
    return opcode == "custom-call" and bool(re.search(r"gemm|matmul|conv|dot|fmha|attention", target, re.IGNORECASE))


def _flops(each: Instruction, target: str) -> int | None:
    """Two for each multiplication with its addition; None where it can't be told."""
    if each.result is None or len(each.operands) < 2 or each.operands[0] is None or each.operands[1] is None:
        return None
    left, right, result = each.operands[0].shape, each.operands[1].shape, each.result.shape
    contracted = each.attribute(r"lhs_contracting_dim(?:s=\{|ensions\":\[)([^}\]]*)[}\]]")
    if contracted or each.opcode == "dot":
        dimensions = [int(number) for number in re.findall(r"\d+", contracted)]
        return 2 * math.prod(result) * math.prod(left[index] for index in dimensions)
    labels = each.attribute(r"dim_labels=\w+_(\w+)->")
    if not labels or "o" not in labels:
        return None
    out = labels.index("o")
    if "BackwardFilter" in target:
        return 2 * math.prod(right) * math.prod(result) // result[out]
    images = left if "BackwardInput" in target else result
    return 2 * math.prod(images) * math.prod(right) // right[out]
