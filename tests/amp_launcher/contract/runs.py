"""A recipe run in this process, in any framework. No framework is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.amp_launcher.torch.trainers import steps

DONE, REFUSED, STOPPED = 0, 2, 85
"""Exit codes."""


def module(framework: str, name: str) -> Any:
    return importlib.import_module(f"amp_launcher.recipes.{name}.train_{framework}")


def run(framework: str, recipe: str, folder: Path, *words: str) -> int:
    """The exit code of a run on a CPU. Of words with the same key the last one counts."""
    by_key = {word.partition("=")[0]: word for word in ("device=cpu", *words, f"run={folder}")}
    loop = importlib.import_module(f"amp_launcher.{framework}.loop")
    code: int = loop.main(recipe, module(framework, recipe).train, list(by_key.values()))
    return code


def train(framework: str, recipe: str, folder: Path, *words: str) -> Path:
    """The folder of a run that has to succeed."""
    assert run(framework, recipe, folder, *words) == DONE
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in steps(folder)]


def networks(framework: str, recipe: str, settings: Any) -> Iterator[tuple[str, Any]]:
    """A recipe's networks, each with the prefix of its layers' names."""
    recipes = module(framework, recipe)
    if recipe == "gan":
        yield "generator.", recipes.generator_network(settings)
        yield "discriminator.", recipes.discriminator_network()
    else:
        yield "", recipes.network(settings) if framework == "tensorflow" else recipes.Net(settings)
