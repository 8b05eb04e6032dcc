"""Running a user's file in this process, as `python FILE ...` would; one with relative imports as `python -m` would."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from amp_launcher.around import script, script_source
from amp_launcher.around.block import BlockOver
from amp_launcher.around.early import NotProved
from amp_launcher.around.overlay import remember_lines
from amp_launcher.leave import FAILED, INTERRUPTED
from amp_launcher.loop.divergence import Diverged

_executed: list[ModuleType] = []
"""Modules of scripts, which live until Python ends, as they do in `python FILE`. DDP's reducer, freed just after its
last backward, holds the GIL and waits for gloo's thread, which needs the GIL to drop an object of that backward."""


def execute(
    file: Path,
    passed: Sequence[str],
    workdir: Path,
    inputs: Mapping[str, str],
    named: str = "",
    *,
    instead: Callable[[BaseException], str] = script.instead,
) -> tuple[int, str | None, str]:
    """Run the file as `python NAMED ...` would, in `workdir`, with a link there to each of the `inputs`.

    `file` has its text, which may differ by now from that of the file `named`; without a name it is that file itself. A
    file with relative imports is run as `python -m` runs it: as a module of its package.

    Returns its exit code, why it failed in one sentence (None if it did not), and the traceback of an exception.
    """
    workdir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, path in inputs.items():
        link = workdir / name
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another rank's link, or an earlier attempt's
            link.symlink_to(path)
    os.chdir(workdir)
    source = file.read_bytes()
    depth = _package_depth(file, script_source.relative_level(source))
    place = os.path.join(os.getcwd(), named or str(file))
    resolved = Path(os.path.realpath(place))
    if depth:
        place = str(resolved)
    sys.argv = [place if depth else named or str(file), *passed]
    first = [] if getattr(sys.flags, "safe_path", False) else [str(resolved.parents[depth])]
    sys.path[: len(first)] = first
    module = ".".join(resolved.with_suffix("").parts[-depth - 1 :]) if depth else ""
    sys.orig_argv = [sys.executable, *(["-m", module] if depth else sys.argv[:1]), *passed]
    try:
        _run_as_main(place, source, module)
    except SystemExit as ended:
        code = _exit_code(ended)
        return code, f"the script ended with exit code {code}" if code else None, ""
    except BlockOver:
        return 0, None, ""
    except KeyboardInterrupt:
        return INTERRUPTED, "interrupted from the keyboard", ""
    except Diverged as error:
        print(f"script: {error}", file=sys.stderr)
        return FAILED, str(error), ""
    except NotProved as ended:
        return FAILED, str(ended), ""
    except BaseException as error:
        trace = _traceback(error, place)
        print(trace, end="", file=sys.stderr, flush=True)
        hint = instead(error) or _not_linked(error, workdir)
        if hint:
            print(f"script: {hint}", file=sys.stderr)
        return FAILED, f"{_in_a_line(error)}{'; ' if hint else ''}{hint}", trace
    return 0, None, ""


def _in_a_line(error: BaseException) -> str:
    """`ValueError: why`; of a message that has the traceback of another process, as of a rank or a worker, that
    process's."""
    kind, lines = type(error).__name__, [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        lines = lines[-1:]
    said = " ".join(lines)
    return said if said.startswith(f"{kind}: ") else f"{kind}: {said}".removesuffix(": ")  # `assert` says nothing


def _package_depth(file: Path, level: int) -> int:
    """The number of folders from a file's package up to the outermost one; 0 for a file without relative imports.

    A folder is a package where a relative import of this level needs one, or where it has an `__init__.py`.
    """
    depth = level
    while depth and (file.parents[depth] / "__init__.py").exists():
        depth += 1
    return depth


def _run_as_main(file: str, source: bytes, module: str) -> None:
    """Run the source as `__main__`, which has the attributes that Python gives it, and stays until Python ends.

    `module` is the dotted name of a file in a package; processes that the script spawns import it by that name.
    """
    loader = SourceFileLoader(module or "__main__", file)
    main = ModuleType("__main__")
    attributes: dict[str, Any] = {"__loader__": loader}
    if module:
        package = module.rpartition(".")[0]
        importlib.import_module(package)
        attributes["__spec__"] = spec = importlib.util.spec_from_file_location(module, file, loader=loader)
        attributes["__package__"] = package
    if sys.version_info < (3, 14):
        attributes["__annotations__"] = {}
    cached = spec.cached if module and spec else None
    attributes |= {"__builtins__": builtins, "__file__": file, "__cached__": cached}
    vars(main).update(attributes)
    _executed.append(main)
    sys.modules["__main__"] = main
    if not os.path.exists(file) or Path(file).read_bytes() != source:
        remember_lines(file, source)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _not_linked(error: BaseException, workdir: Path) -> str:
    """Advice where a relative path is missing in the run's own folder, which was empty at first; or an empty string."""
    path = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(path, str) or os.environ.get("LAUNCHER_RUN_ID") not in workdir.parts:
        return ""
    parts = os.path.normpath(path).split("/")
    above = parts.count("..")
    name = "/".join(parts[: above + 1])
    if name in ("", ".") or len(parts) == above:  # absolute, or a folder that is there
        return ""
    return (
        f"it starts in an empty folder of its own; if it reads {name}, script.inputs=[{name}] links it there; if it "
        "writes there, it has to make the folder first"
    )


def _exit_code(ended: SystemExit) -> int:
    """The exit code that Python derives from the argument of `sys.exit`."""
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _traceback(error: BaseException, file: str) -> str:
    """The traceback without the wrapper's frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
