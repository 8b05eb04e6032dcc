from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.amp_launcher import forking
from tests.amp_launcher.torch.scenarios import problems

forking.preload("torch._dynamo", "torch._inductor.compile_fx", "sklearn.datasets", "amp_launcher.torch.supervised")


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


@pytest.fixture
def calls_for_kernels() -> Iterator[None]:
    """Inductor compiles all but its kernels: its code calls torch's own operations in their place. The graph that is
    observed is the same, and the C++ compiler, which takes most of the time, isn't needed."""
    from torch._inductor import config

    has_option = hasattr(config, "fallback_by_default")
    with config.patch(fallback_by_default=True) if has_option else contextlib.nullcontext():
        yield


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each of the module's SCENARIOS on two ranks, its tracebacks."""
    return problems(request.module.__name__, tmp_path_factory.mktemp("ranks"))
