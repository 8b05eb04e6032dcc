"""Precision set through a script's training library, by the environment variable that the library reads.

Lightning's `Trainer` takes each argument that it isn't given from `PL_TRAINER_NAME`, its `Fabric` from `LT_NAME`;
accelerate's `Accelerator` and transformers' `TrainingArguments`, with those of sentence-transformers and trl, read
`ACCELERATE_MIXED_PRECISION`. Seen in lightning 2.6, accelerate 1.15 and transformers 5.23. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_launcher.precision.support import Support

LIGHTNING, ACCELERATE, TRANSFORMERS = "lightning", "accelerate", "transformers"
CLI = "LightningCLI"
LIBRARIES = (LIGHTNING, TRANSFORMERS, ACCELERATE)
"""In order of precedence, where a script uses several."""
MECHANISMS = {
    LIGHTNING: "lightning_precision",
    ACCELERATE: "accelerate_mixed_precision",
    TRANSFORMERS: "accelerate_mixed_precision",
}
VARIABLES = {
    "lightning_precision": ("PL_TRAINER_PRECISION", "LT_PRECISION"),
    "accelerate_mixed_precision": ("ACCELERATE_MIXED_PRECISION",),
}
"""The variables that set each mechanism."""
VALUES = {
    "lightning_precision": {
        ("o1", "float16"): "16-mixed",
        ("o1", "bfloat16"): "bf16-mixed",
        ("o3", "float16"): "16-true",
        ("o3", "bfloat16"): "bf16-true",
    },
    "accelerate_mixed_precision": {("o1", "float16"): "fp16", ("o1", "bfloat16"): "bf16"},
}
_NAMES = {LIGHTNING: "Lightning", ACCELERATE: "accelerate", TRANSFORMERS: "transformers' Trainer"}
_CLASSES = {
    LIGHTNING: ("Trainer", "Fabric", CLI),
    ACCELERATE: ("Accelerator",),
    TRANSFORMERS: (),  # by their endings: other libraries derive theirs from it
}
_ENDINGS = ("Trainer", "TrainingArguments")
_ROOTS = {
    "pytorch_lightning": LIGHTNING,
    "lightning_fabric": LIGHTNING,
    "sentence_transformers": TRANSFORMERS,
    "trl": TRANSFORMERS,
    **{name: name for name in LIBRARIES},
}


def read(tree: ast.AST) -> tuple[str, str]:
    """The training library of a script, and the call whose argument overrides its switch; empty where there is none."""
    uses = list(_uses(tree))
    for library in LIBRARIES:
        names = {name for used, name in uses if used == library and _is_its_switch(library, name)}
        if names:
            return library, _decided(tree, library, names)
    return "", ""


def _is_its_switch(library: str, name: str) -> bool:
    return name in _CLASSES[library] or (library == TRANSFORMERS and name.endswith(_ENDINGS))


def _uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Pairs of a library and a name that the script uses of it."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if library := _ROOTS.get(name.name.partition(".")[0], ""):
                    modules[name.asname or name.name.partition(".")[0]] = library
        elif isinstance(node, ast.ImportFrom) and (library := _of_module(node)):
            for name in node.names:
                modules[name.asname or name.name] = library  # `from lightning import pytorch as pl`
                yield library, name.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in modules:
                yield modules[root.id], node.attr


def _of_module(node: ast.ImportFrom) -> str:
    return "" if node.level else _ROOTS.get((node.module or "").partition(".")[0], "")


def _decided(tree: ast.AST, library: str, names: set[str]) -> str:
    """The argument that makes the library ignore its variable, as the script spells it."""
    if CLI in names:
        return CLI
    argument = {LIGHTNING: "precision", ACCELERATE: "mixed_precision"}.get(library, "")  # None is that of `**more`
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for keyword in call.keywords if name in _CLASSES[library] and name != "Fabric" else ():  # LT_PRECISION wins
            known = isinstance(keyword.value, ast.Constant) and keyword.value.value is not None
            if keyword.arg == argument and (known or library != ACCELERATE):
                return f"{name}({argument}={ast.unparse(keyword.value)})"
    return ""


def support(library: str, decided: str, level: str, dtype: str, device: str, add: str) -> Support:
    """The library's switch as the mechanism of a level, or why there is none. `add` is advice: lines for the script."""
    mechanism, name = MECHANISMS[library], _NAMES[library]
    value = VALUES[mechanism].get((level, dtype))
    if value is None:
        return Support(
            unsupported=f"{name} has no switch for amp={level}{_all_half(library, level, dtype)}; say amp=o1, or {add}"
        )
    if dtype == "float16" and level == "o1" and device == "cpu":
        instead = "runs bfloat16" if library == LIGHTNING else "runs float32"
        return Support(
            unsupported=f"{name} {instead} where float16 is asked for on a CPU; say amp.dtype=bfloat16, or run on a GPU"
        )
    variable = VARIABLES[mechanism][0]
    if decided == CLI:
        return Support(
            unsupported=f"{CLI} does not read {variable}; pass `--trainer.precision={value}` after -- and say "
            "train.precision=script"
        )
    if decided:
        argument = "precision" if library == LIGHTNING else "mixed_precision"
        return Support(
            unsupported=f"the script sets {decided}, and {name} then ignores {variable}; leave "
            f'{argument} out of that call, or write {argument}="{value}" there and say train.precision=script'
        )
    return Support(mechanism=mechanism, lists="observed")


def _all_half(library: str, level: str, dtype: str) -> str:
    if level != "o3":
        return ""
    line = f"dtype=torch.{dtype} in from_pretrained" if library == TRANSFORMERS else f"model.to(torch.{dtype})"
    return f" (the script can make its model half: {line}, with train.precision=script)"


def environment(mechanism: str, level: str, dtype: str) -> dict[str, str]:
    """The variables that set a level; none for a mechanism that is not a library's."""
    names = VARIABLES.get(mechanism, ())
    return dict.fromkeys(names, VALUES[mechanism][level, dtype]) if names else {}
