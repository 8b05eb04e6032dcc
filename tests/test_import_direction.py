"""Imports point one way: launcher -> containers and recipes -> amp_launcher, nothing back; the launcher loads its
standard-library part."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = (
    "units called waiting admit safe_files bash_files errors runs config code probe plan script ssh executors ui "
    "doctor report trackers compare search notebook commands __main__"
).split()
"""What lies in launcher/, from the bottom up: a file imports only from its own room and those before it."""
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "paddle": "paddle"}
LAUNCHER_ONLY = {"hydra", "hydra_plugins", "omegaconf", "submitit", "fabric", "yaml", "rich"}


def imports(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """Every module that a file imports: inside functions too, or only those that it needs to be imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = path.relative_to(ROOT).parent.parts
            assert node.level == 0 or home[0] == "recipes", "imports are absolute, but for those of recipes"
            above = ".".join(home[: len(home) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            yield from (f"{module}.{name.name}" for name in node.names)


def files(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths, f"{folder} has no Python files"
    return paths


def top(module: str) -> str:
    return module.split(".")[0]


OF_FRAMEWORKS = re.compile(r"amp_launcher\.((torch|tensorflow|paddle)(\.|$)|recipes\.\w+\.train_)")
FORBIDDEN = {
    "launcher": lambda module: (
        top(module) in {*FRAMEWORKS, "hydra_plugins", "recipes", "containers"} or OF_FRAMEWORKS.match(module)
    ),
    "hydra_plugins": lambda module: top(module) in {*FRAMEWORKS, "amp_launcher", "recipes", "containers"},
    "containers": lambda module: (
        top(module) in {*FRAMEWORKS, "recipes"}
        or OF_FRAMEWORKS.match(module)
        or re.match(r"hydra_plugins|launcher\.(?!containers\b)", module)
    ),
    "recipes": lambda module: top(module) in {"launcher", "containers", *LAUNCHER_ONLY},
    "amp_launcher": lambda module: top(module) in {"launcher", "containers", "recipes", *LAUNCHER_ONLY},
}


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_the_launcher_imports_no_framework_and_the_training_side_nothing_of_the_launcher(folder: str) -> None:
    assert [(path, module) for path in files(folder) for module in imports(path) if FORBIDDEN[folder](module)] == []


def test_a_framework_is_imported_only_in_its_own_folder() -> None:
    for path in (*files("recipes"), *files("amp_launcher")):
        for module in imports(path):
            home = FRAMEWORKS.get(top(module))
            mine = (*path.relative_to(ROOT).parts, path.stem.removeprefix("train_"))
            assert home is None or home in mine, f"{path} imports {module}"


def test_recipes_and_their_precision_rules_load_with_the_standard_library_only() -> None:
    paths = [
        path for place in ("", "precision", "job", "around") for path in (ROOT / "amp_launcher" / place).glob("*.py")
    ]
    for path in (*paths, *(ROOT / "recipes").glob("*/__init__.py")):
        for module in imports(path, at_import=True):
            assert top(module) in {*sys.stdlib_module_names, "amp_launcher", "recipes"}, f"{path} imports {module}"


def test_rooms_of_the_launcher_import_one_way() -> None:
    upward = set()
    for path in files("launcher"):
        own = path.relative_to(ROOT / "launcher").with_suffix("").parts
        for module in imports(path):
            room = module.split(".")[1] if module.startswith("launcher.") else ""
            if room in ROOMS and own[0] in ROOMS and ROOMS.index(room) > ROOMS.index(own[0]):
                upward.add((".".join(own), room))
    assert upward == set()


def test_every_file_of_the_launcher_is_in_a_room() -> None:
    names = {path.relative_to(ROOT / "launcher").with_suffix("").parts[0] for path in files("launcher")}
    assert names - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize(
    "package", ["amp_launcher", "amp_launcher.torch", "amp_launcher.tensorflow", "amp_launcher.paddle"]
)
def test_rooms_and_files_of_a_recipes_package_import_one_way(package: str) -> None:
    """Each room, or file beside the rooms, counts as one; inside a framework, observation stands on precision."""
    parts = package.split(".")
    graph = _graph(len(parts) + 1, package)
    assert f"{package}.precision" in graph
    assert _circle(graph) == []


def test_no_two_files_of_recipes_and_containers_import_each_other_by_whatever_way() -> None:
    for folder in ("recipes", "amp_launcher", "containers"):
        assert _circle(_graph(99, folder)) == []


def _graph(depth: int, package: str) -> dict[str, set[str]]:
    """What imports what in a package, by the first `depth` parts of their names."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files(package.replace(".", "/"))}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        importer = ".".join(name.split(".")[:depth])
        for imported in imports(path):
            module = imported if imported in modules else imported.rpartition(".")[0]
            target = ".".join(module.split(".")[:depth])
            if module in modules and target not in (importer, package):
                graph.setdefault(importer, set()).add(target)
    return graph


def _circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_says_in_a_line_what_it_is() -> None:
    for path in (
        path for part in ("launcher", "amp_launcher", "recipes") for path in (ROOT / part).rglob("__init__.py")
    ):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_submitit_is_imported_by_the_executors_classes_only() -> None:
    users = {
        str(path.relative_to(ROOT / "launcher"))
        for path in files("launcher")
        if any(top(module) in ("submitit", "cloudpickle") for module in imports(path))
    }
    assert users == {"executors/base.py", "executors/functions.py", "executors/job.py", "executors/slurm/executor.py"}
