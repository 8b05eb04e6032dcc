from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.amp_launcher import forking
from tests.amp_launcher.torch.scenarios import calling_for_kernels, problems

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
    with calling_for_kernels():
        yield


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each of the module's SCENARIOS on two ranks, its tracebacks."""
    return problems(request.module.__name__, tmp_path_factory.mktemp("ranks"))
