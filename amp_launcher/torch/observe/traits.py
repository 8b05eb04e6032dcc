"""What an operation does to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from amp_launcher.torch.observe.calls import tensors
from amp_launcher.torch.observe.memory import State

_FILLS = ("zero", "ones", "full", "fill_", "new_zeros", "new_ones", "new_full")
"""How the names of operations begin that write one number everywhere."""
_UPDATES = frozenset("add_ sub_ mul_ div_ lerp_ addcmul_ addcdiv_ clamp_ clamp_min_ clamp_max_ neg_ pow_".split())
"""Operations in place that read what they write."""


class Traits:
    """By its schema and its name."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        name = schema.name.partition("::")[2] if schema else ""
        arguments = schema.arguments if schema else []
        written = [item for item in enumerate(arguments) if item[1].alias_info and item[1].alias_info.is_write]
        self.positions = [index for index, argument in written if not argument.kwarg_only]
        self.keywords = [argument.name for _, argument in written]
        # Those of collectives don't say what they write.
        self.sends = schema is not None and any(name in schema.name for name in ("c10d", "fsdp"))
        self.leaves = State.WRITTEN
        """Who wrote what it returns or writes."""
        if name.startswith(("empty", "new_empty")):
            self.leaves = State.ALLOCATED
        elif name.startswith(_FILLS):
            self.leaves = State.FILLED
        self.reads = not (
            self.sends or name.endswith("_like") or name.startswith("new_") or name in ("_unsafe_view", "lift_fresh")
        )
        if schema and not written and any(argument.alias_info for argument in arguments):
            self.reads = False  # a view
        self.updates = name in _UPDATES
        self.arrives = name == "lift_fresh"
        self.name = str(func)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        if self.sends:
            return tensors([*args, *kwargs.values()])
        given = [args[index] for index in self.positions if index < len(args)]
        return tensors([*given, *(kwargs[name] for name in self.keywords if name in kwargs)])
