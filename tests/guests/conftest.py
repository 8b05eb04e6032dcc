from __future__ import annotations

from tests.recipes import forking

forking.preload(
    "torch._dynamo",
    "recipes.torch_.observe.script_observer",
    "recipes.torch_.precision",
    "recipes.tensorflow_.observe.step_counter",
    "recipes.trainer.script",
)
