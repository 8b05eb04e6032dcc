"""What the text of a user's script shows of its precision, read as a syntax tree and never run."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from amp_launcher.around import library_switch

PACKAGE = "amp_launcher"
MAKERS = ("Precision", "LightningPrecision", "PrecisionTrainer")
NAMES = (*MAKERS, "precision", "torch", "tensorflow", "paddle", "lightning_precision", "trainer_precision")
"""What a script may import from there to make a precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What the text of a script shows of its precision; nothing for a file that isn't here, or isn't Python."""

    asks: bool = False
    """It makes a `Precision` of ours."""
    fits: bool = False
    """It trains by Keras's compile and fit, which scale the loss of float16 by themselves."""
    static: bool = False
    """It calls Paddle's `enable_static`, behind which it builds graphs."""
    library: str = ""
    """The training library, if it has a switch for precision (`amp_launcher.around.library_switch`)."""
    decided: str = ""
    """The argument that makes the library ignore its switch, as the script spells it."""


def read(text: str | bytes) -> Source:
    """Read the text of a Python file."""
    try:
        tree = parsed(text)
    except SyntaxError:
        return Source()
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    methods = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    own = set(_bound_to_ours(tree))
    asks = any(
        (isinstance(call, ast.Attribute) and call.attr == "from_env" and _last_name(call.value) == "Precision")
        or (isinstance(call, ast.Name) and call.id in own)
        or (isinstance(call, ast.Attribute) and call.attr in MAKERS and _first_name(call) in own)
        for call in (*calls, *bases)
    )
    own_loop = any(
        (isinstance(node, ast.Attribute) and node.attr == "GradientTape")
        or (isinstance(node, ast.FunctionDef) and node.name == "train_step")
        or (isinstance(node, ast.keyword) and node.arg == "auto_scale_loss")
        for node in ast.walk(tree)
    )
    library, decided = library_switch.read(tree)
    return Source(
        asks=asks,
        fits={"compile", "fit"} <= methods and not own_loop,
        static="enable_static" in methods,
        library=library,
        decided=decided,
    )


def relative_level(text: str | bytes) -> int:
    """The number of dots of the deepest relative import in the text of a Python file; 0 if it has none."""
    try:
        tree = parsed(text)
    except SyntaxError:
        return 0
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


@functools.lru_cache(maxsize=16)  # a plan asks for the tree of a script four times
def parsed(text: str | bytes) -> ast.Module:
    """The text of a Python file as a tree, not to be changed. Raises `SyntaxError`, also for what Python refuses
    otherwise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when it runs the script
            return ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is nested too deeply") from None


def _bound_to_ours(tree: ast.Module) -> Iterator[str]:
    """The names by which a script knows `amp_launcher`, its packages and `Precision`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == PACKAGE:
                    yield name.asname or PACKAGE
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE and not node.level:
            yield from (name.asname or name.name for name in node.names if name.name in NAMES)


def _first_name(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
