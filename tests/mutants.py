"""Mutation testing: which changes of one operator do the tests of a file catch? `make mutants ROOM=launcher/ssh`.

The changes are cosmic-ray's. Its own command changes files in place and has one test command for all of them; here a
mutant is written into a copy of the work tree, which is left alone, and only the tests of its file run, in a process
forked from one that has imported what takes long. Processes that a test left are known by the copy's path in their
environment.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent
COMPARED = "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Lt_GtE GtE_Lt Gt_GtE GtE_Gt Gt_LtE LtE_Gt Is_IsNot IsNot_Is"
OPERATORS = [
    *(f"core/ReplaceComparisonOperator_{change}" for change in COMPARED.split()),
    *(f"core/Replace{change}" for change in ("AndWithOr", "OrWithAnd", "TrueWithFalse", "FalseWithTrue")),
    *(f"core/Replace{change}" for change in ("BinaryOperator_Add_Sub", "BinaryOperator_Sub_Add")),
    "core/ReplaceUnaryOperator_Delete_Not",
]
FORK = multiprocessing.get_context("fork")
SLACK, GRACE = 4, 20.0
"""A mutant has this many times the seconds of the unchanged file's tests, and these more."""


class Mutant(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    original: str
    code: str


def mutants(file: str) -> Iterator[Mutant]:
    code = (ROOT / file).read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(code)))
    for name in OPERATORS:
        operator = get_operator(name)()
        places = [start for node in nodes for (start, _) in operator.mutation_positions(node)]
        for occurrence, (line, _) in enumerate(places):
            changed = mutate_code(code, operator, occurrence)
            before, after = code.splitlines()[line - 1].strip(), (changed or code).splitlines()[line - 1].strip()
            if before != after and not before.startswith("@"):  # a decorator of a dataclass decides nothing
                yield Mutant(file, line, before, after, code, changed)


def room(file: str) -> Path:
    """The folder of its tests."""
    return next(ROOT / "tests" / parent for parent in Path(file).parents if (ROOT / "tests" / parent).is_dir())


def users(file: str, folder: Path, pattern: str) -> set[Path]:
    """Files of this pattern that import the file."""
    path = Path(file)
    package = rf"([\w.]+\.)?{path.parent.as_posix().replace('/', '.')}"  # `containers/` is `launcher.containers`
    imports = re.compile(rf"^\s*from {package}(\.{path.stem} import| import (\([^)]*|.*)\b{path.stem}\b)", re.M)
    return {user for user in folder.glob(pattern) if imports.search(user.read_text(encoding="utf-8"))}


def tests_near(file: str, seen: frozenset[str]) -> set[Path]:
    """Tests in the file's room that have its name or import it; without any, those of the files beside it that do."""
    found = users(file, room(file), "test_*.py") | set(room(file).glob(f"test_{Path(file).stem}.py"))
    beside = {str(user.relative_to(ROOT)) for user in users(file, (ROOT / file).parent, "*.py")} - seen
    return found or {test for user in beside for test in tests_near(user, seen | beside)}


def tests_of(file: str) -> list[str]:
    found = tests_near(file, frozenset()) or users(file, ROOT / "tests", "**/test_*.py") or {room(file)}
    stem = Path(file).stem
    return [str(test.relative_to(ROOT)) for test in sorted(found, key=lambda test: (stem not in test.stem, test))]


def run(copy: Path, tests: Sequence[str], limit: float | None) -> int | None:
    """Pytest's exit status in this copy of the tree, or None after so many seconds. Without a limit, for the unchanged
    tree, bytecode is kept, which is more than half of the time of quick tests."""
    process = FORK.Process(target=run_tests, args=(copy, tests, limit is None))
    process.start()
    try:
        process.join(limit)
        return process.exitcode
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # what it forked
        process.join()
        end(copy)


def run_tests(copy: Path, tests: Sequence[str], keep_bytecode: bool) -> None:
    """In a process of its own, which it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    os.chdir(copy)
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="" if keep_bytecode else "1", OMP_NUM_THREADS="1")
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{ROOT}/tests"):
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")  # which a process that a test spawns would import
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = not keep_bytecode
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    passed = Passed()
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[passed])
    os._exit(status or (0 if passed.any else pytest.ExitCode.NO_TESTS_COLLECTED))


class Passed:
    """A plugin of pytest, for which skipped tests are as good as passed ones."""

    any = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.any |= report.when == "call" and report.passed


def end(folder: Path) -> None:
    """Kill every process that tests in this folder started."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:  # it ended, or is another user's
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+", help="folders or files")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of the files' own")
    parser.add_argument("--sample", type=int, help="of all mutants, so many at random")
    parser.add_argument("--seed", type=int, default=1)
    # Runs of one name end each other: more only where tests start none.
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--preload", nargs="*", default=["hydra", "submitit"], help="what tests import")
    options = parser.parse_args()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tree = subprocess.check_output(listed, cwd=ROOT, text=True).strip("\0").split("\0")
    files = [name for name in tree if name.endswith(".py") and any(Path(name).is_relative_to(r) for r in options.rooms)]
    todo = [mutant for name in files for mutant in mutants(name)]
    if options.sample is not None and options.sample < len(todo):
        todo = random.Random(options.seed).sample(todo, options.sample)
    todo.sort()
    for name in options.preload:
        importlib.import_module(name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, and leaves nothing
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        os.chmod(name, 0o755)  # tests run programs as other users
        copies = [Path(name, str(number)) for number in range(options.processes)]
        for path in (ROOT / entry for entry in tree if (ROOT / entry).exists()):
            target = copies[0] / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
        tests = {file: tuple(options.tests or tests_of(file)) for file in dict.fromkeys(mutant.file for mutant in todo)}
        limits: dict[tuple[str, ...], float] = {}
        for each in dict.fromkeys(tests.values()):
            began = time.monotonic()
            status = run(copies[0], each, None)
            if status == pytest.ExitCode.NO_TESTS_COLLECTED:
                skipped = [mutant for mutant in todo if tests[mutant.file] == each]
                todo = [mutant for mutant in todo if mutant not in skipped]
                names = " ".join(dict.fromkeys(mutant.file for mutant in skipped))
                print(f"{len(skipped)} not tested, of {names}: all tests of {' '.join(each)} are skipped here")
            elif status != 0:
                print(f"these fail without a mutant: {' '.join(each)}")
                return 2
            limits[each] = SLACK * (time.monotonic() - began) + GRACE
        for copy in copies[1:]:
            shutil.copytree(copies[0], copy, symlinks=True)

        caught = FORK.Value("i")

        def work(number: int) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                for mutant in todo[number :: len(copies)]:
                    (copies[number] / mutant.file).write_text(mutant.code, encoding="utf-8")
                    if run(copies[number], tests[mutant.file], limits[tests[mutant.file]]) == 0:
                        print(f"{mutant.file}:{mutant.line}  {mutant.before}  ->  {mutant.after}", flush=True)
                    else:
                        with caught.get_lock():
                            caught.value += 1
                    (copies[number] / mutant.file).write_text(mutant.original, encoding="utf-8")

        try:
            workers = [FORK.Process(target=work, args=(number,)) for number in range(len(copies))]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            for left in multiprocessing.active_children():
                left.terminate()
                left.join()
    print(f"{caught.value} of {len(todo)} caught, {caught.value / max(1, len(todo)):.1%}")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
