from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.recipes import forking

forking.preload("torch._dynamo", "torch._inductor.output_code", "sklearn.datasets", "recipes.torch_.supervised")


@pytest.fixture(scope="module", autouse=True)
def _own_switches() -> Iterator[None]:
    """A trainer in this process sets torch's switches for its process: afterwards they are as before."""
    repeatable, filled = (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(repeatable)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.set_num_threads(threads)
