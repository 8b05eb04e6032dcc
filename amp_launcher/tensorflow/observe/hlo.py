"""The matrix products and convolutions of a program that XLA compiled, with dtypes and FLOPs.

Under XLA no other source is reliable: on a CPU, half precision before XLA's optimizations is float32 after them. Read
from the HLO text that XLA dumps (https://openxla.org/xla/hlo_dumps). A product in a loop counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amp_launcher.precision.observation import call
from amp_launcher.tensorflow.observe.graphs import BACKWARD, Reading, layer_of
from amp_launcher.tensorflow.observe.products import PRODUCTS

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
MODULE = re.compile(r"after_optimizations\.txt$")

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")


Array = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One line of a computation."""

    opcode: str
    result: Array | None
    operands: list[Array | None] = field(default_factory=list)
    attributes: str = ""

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern in the attributes, empty where it doesn't match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


def modules(folder: Path) -> set[Path]:
    """The dumps of the programs that XLA has compiled."""
    return {path for path in folder.iterdir() if MODULE.search(path.name)} if folder.is_dir() else set()


def read(text: str, kept: str | None, device: str) -> Reading:
    """The contents of a module. `kept` is part of the name of each operation of a layer kept in float32."""
    reading = Reading()
    for instruction in instructions(text):
        name = instruction.attribute(r'op_name="([^"]*)"')
        if kept is not None:
            reading.kept.update(layer_of(name, kept))
        target = instruction.attribute(r'custom_call_target="([^"]*)"')
        if not _multiplies(instruction.opcode, target):
            continue
        work = _flops(instruction, target)
        if work is None:
            reading.unaccounted[target or instruction.opcode] += 1
            continue
        dtypes = [operand[0] for operand in instruction.operands[:2] if operand is not None]
        dtype = max(dtypes, key=lambda name: WIDTHS.get(name, 0))
        operation = instruction.attribute(r'op_type="(\w+)"')
        reading.listed[operation, dtype] += 1
        reading.per_sample.add(False)  # XLA compiles for known shapes
        reading.calls.append(
            call(
                target or instruction.opcode,
                dtype,
                work,
                functions=[operation] if operation in PRODUCTS else [],
                backward=bool(BACKWARD.search(name)),
                kept=kept is not None and kept in name,
                device=device,
                compiled=True,
            )
        )
    return reading


def instructions(text: str) -> Iterator[Instruction]:
    """Every instruction of every computation of a module, with the types of its operands."""
    types: dict[str, Array | None] = {}
    for line in text.splitlines():
        if line.endswith("{"):
            types = {}  # names are local to a computation
        match = _INSTRUCTION.match(line)
        if not match:
            continue
        name, result, opcode, rest = match.groups()
        arguments, _, attributes = rest.partition(")")
        types[name] = _array(result)
        operands = [types.get(operand) for operand in _OPERAND.findall(arguments)]
        yield Instruction(opcode=opcode, result=types[name], operands=operands, attributes=attributes)


def _array(text: str) -> Array | None:
    """The first type of a text: library calls on a GPU also return a workspace."""
    match = _ARRAY.search(text)
    return (DTYPES.get(match[1], match[1]), tuple(int(size) for size in match[2].split(",") if size)) if match else None


def _multiplies(opcode: str, target: str) -> bool:
    if opcode in ("dot", "convolution"):
        return True
    return opcode == "custom-call" and bool(re.search(r"gemm|matmul|conv|dot|fmha|attention", target, re.IGNORECASE))


def _flops(product: Instruction, target: str) -> int | None:
    """Two for each multiplication with its addition; None where the shapes are unknown."""
    left, right, *_ = [*product.operands, None, None]
    if product.result is None or left is None or right is None:
        return None
    (_, first), (_, second), (_, output) = left, right, product.result
    contracted = product.attribute(r"lhs_contracting_dim(?:s=\{|ensions\":\[)([^}\]]*)[}\]]")
    if contracted or product.opcode == "dot":
        dimensions = [int(number) for number in re.findall(r"\d+", contracted)]
        return 2 * math.prod(output) * math.prod(first[index] for index in dimensions)
    labels = product.attribute(r"dim_labels=\w+_(\w+)->")
    if "o" not in labels:
        return None
    out = labels.index("o")
    if "BackwardFilter" in target:
        return 2 * math.prod(second) * math.prod(output) // output[out]
    images = first if "BackwardInput" in target else output
    return 2 * math.prod(images) * math.prod(second) // second[out]
