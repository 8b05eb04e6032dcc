"""Prints the support matrix: `python -m amp_launcher.modes [torch|tensorflow|paddle]`.

For each framework, level, dtype, device and compiler it names the mechanism, or the reason why there is none. Standard
library only, so that it runs in any container.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import get_args

from amp_launcher.around import library_switch, script
from amp_launcher.around.script_source import Source
from amp_launcher.precision.gemm import FORMATS, ROLES, install
from amp_launcher.precision.levels import LEVELS, Amp, Framework
from amp_launcher.precision.support import Support, support_for
from amp_launcher.settings import Settings

FRAMEWORKS = get_args(Framework)
MEANINGS = {
    "float32": "nothing is cast; tf32= says whether float32 products are TF32",
    "autocast": "torch.autocast by operation lists, with a gradient scaler for float16",
    "half_model_fp32_masters": "the model cast but for its norms, float32 masters unless switched off, autocast",
    "sharded_fp32_masters": "parallel=fsdp: float32 shards as masters, half precision gathered from them, autocast",
    "half_model": "model and inputs cast, the loss in float32",
    "grappler": "TensorFlow's graph rewrite, auto_mixed_precision, by operation lists; xla=true compiles what it made",
    "keras_policy": "mixed_float16 or mixed_bfloat16 at o2, float16 or bfloat16 at o3",
    "autocast_around": "torch.autocast around a user's script, from a step's first module call to its backward",
    "lightning_precision": "PL_TRAINER_PRECISION and LT_PRECISION in the script's environment, which Lightning reads",
    "accelerate_mixed_precision": "ACCELERATE_MIXED_PRECISION in its environment, which accelerate and Trainer read",
    "auto_cast": "paddle.amp.auto_cast at O1, with custom lists",
    "decorate_auto_cast": "paddle.amp.decorate with master weights, and auto_cast at O2",
    "decorate_no_masters": "the same without master weights",
    "static_bf16": "paddle.static.amp.bf16, by operation lists, with train.api=static",
    "static_pure_bf16": "the same of a half-precision model without master weights; at o2 by amp.master_weights=false",
}
"""What each mechanism is."""
HEADER = ("framework", "level", "dtype", "device", "xla", "carried out by")
SCRIPT_HEADER = ("library of a script", "level", "dtype", "device", "carried out by")
GEMM_HEADER = tuple("amp.gemm,levels,forward,input gradient,weight gradient,multiples of,capability,CPU,by".split(","))
_END = re.compile(r" \(|; say |, or let ")
"""The end of the reason in a script's row, where advice begins."""


def rows(frameworks: Sequence[str] = FRAMEWORKS) -> Iterator[tuple[str, ...]]:
    """The table's rows, with one row where only `xla=true` matters."""
    for framework in frameworks:
        for level, device, xla in itertools.product(LEVELS, ("cpu", "cuda"), (False, True)):
            if xla and framework != "tensorflow":
                continue
            dtypes = ("float32",) if level == "o0" else ("float16", "bfloat16")
            cells = {dtype: _cell(support_for(framework, level, dtype, xla, device)) for dtype in dtypes}
            if len(dtypes) == 2 and cells["float16"] == cells["bfloat16"]:
                cells = {"either": cells["float16"]}
            for dtype, cell in cells.items():
                yield framework, level, dtype, device, str(xla).lower(), cell
            if framework == "torch" and level == "o2":
                sharded = support_for(framework, level, "bfloat16", xla, device, parallel="fsdp")
                yield framework, f"{level} fsdp", "either", device, str(xla).lower(), _cell(sharded)
        if framework == "paddle":
            for level in ("o1", "o2", "o3"):
                masters = False if level == "o2" else None
                cell = _cell(support_for(framework, level, "bfloat16", False, "cpu", masters, static=True))
                yield framework, f"{level} static", "bfloat16", "cpu", "false", cell
        if framework != "torch":
            cell = _cell(support_for(framework, "o2", "float16", False, "cuda", parallel="fsdp"))
            yield framework, "any fsdp", "any", "any", "any", cell
        if framework != "tensorflow":
            cell = _cell(support_for(framework, "o1", "float16", True, "cpu"))
            yield framework, "any", "any", "any", "true", cell


def script_rows() -> Iterator[tuple[str, ...]]:
    """The rows for unchanged users' scripts in torch, by their training library."""
    for library, level in itertools.product(("", *library_switch.LIBRARIES), list(LEVELS)[1:]):
        settings = Settings(recipe="script", amp=Amp(level=level), train=script.ScriptSettings())
        cells: dict[tuple[str, str], str] = {}
        for dtype in ("float16", "bfloat16"):
            by_device = {
                device: script.support(settings, dtype, device, Source(library=library)) for device in ("cpu", "cuda")
            }
            short = {device: _END.split(_cell(support))[0] for device, support in by_device.items()}
            if short["cpu"] == short["cuda"]:
                short = {"any": short["cpu"]}
            cells.update({(dtype, device): cell for device, cell in short.items()})
        if len(set(cells.values())) == 1:
            cells = {("either", "any"): cells["float16", "any"]}
        for (dtype, device), cell in cells.items():
            yield library or "none of these", level, dtype, device, cell


def gemm_rows() -> Iterator[tuple[str, ...]]:
    """The rows for number formats of linear layers' products, in bfloat16 in torch."""
    for name, number_format in FORMATS.items():
        operands = (" x ".join(dict.fromkeys(number_format.operands(role))) for role in ROLES)
        first, end = (".".join(map(str, each or ())) for each in (number_format.capability, number_format.below))
        capability = f"{first}, below {end}" if end else first
        others = (str(number_format.multiple), capability, number_format.cpu, number_format.by)
        yield name, ", ".join(number_format.levels), *operands, *others


def _cell(support: Support) -> str:
    return support.mechanism or f"nothing: {support.unsupported}"


def main(words: Sequence[str]) -> int:
    unknown = [word for word in words if word not in FRAMEWORKS]
    if unknown:
        print(f"{unknown[0]} is not one of {', '.join(FRAMEWORKS)}", file=sys.stderr)
        return 2
    tables = [[HEADER, *rows(words or FRAMEWORKS)]]
    if not words or "torch" in words:
        tables += [[SCRIPT_HEADER, *script_rows()], [GEMM_HEADER, *gemm_rows()]]
    for table in tables:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        print()
    shown = {row[-1] for table in tables for row in table}
    for name, meaning in MEANINGS.items():
        if name in shown:
            print(f"{name:26}  {meaning}")
    if not words or "torch" in words:
        print(f"{'torchao':26}  converts linear layers but for the last; {install('fp8-tensorwise')}")
        print(
            f"{'a prototype of torchao':26}  the same, by layers that its next release may change; {install('mxfp8')}"
        )
    print("On a GPU float16 wants compute capability 7.0, bfloat16 and TF32 8.0.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
