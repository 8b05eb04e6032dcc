"""Digests of tensors: every bit counts, on a CPU by SHA-256 and on a GPU by integer sums, which run here on a CPU."""

from __future__ import annotations

import pytest
import torch

from amp_launcher.precision.levels import Amp
from amp_launcher.torch import digests
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.trained import Trained


@pytest.mark.parametrize("count", [0, 1, 3, 8, 9, 4097])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_any_bit_of_any_size_changes_the_sum(count: int, dtype: torch.dtype) -> None:
    tensor = torch.zeros(count, dtype=dtype)
    content = tensor.view(torch.uint8)
    seen = {int(digests.word_sum(tensor))}
    places = sorted({0, 1, len(content) // 2, len(content) - 1} & set(range(len(content))))
    for place in places:
        for bit in range(8) if dtype != torch.bool else (0,):
            content[place] = 1 << bit
            seen.add(int(digests.word_sum(tensor)))
        content[place] = 0
    assert len(seen) == 1 + len(places) * (8 if dtype != torch.bool else 1)


def test_two_flipped_signs_do_not_cancel() -> None:
    tensor = torch.arange(1.0, 65.0)
    sums = {int(digests.word_sum(tensor))}
    for one in range(8):
        for other in range(one):
            flipped = tensor.clone()
            flipped[[one, other]] *= -1
            sums.add(int(digests.word_sum(flipped)))
    assert len(sums) == 1 + 8 * 7 // 2


def test_the_order_of_elements_and_parts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(digests, "_CHUNK", 64)
    swapped = torch.cat([tensor[128:256], tensor[:128], tensor[256:]])  # whole parts
    assert int(digests.word_sum(tensor)) != int(digests.word_sum(swapped))
    assert int(digests.word_sum(tensor)) != int(digests.word_sum(tensor.flip(0)))


def test_a_transposed_or_shifted_view_has_the_sum_of_its_values() -> None:
    tensor = torch.randn(6, 5)
    for view in (tensor.t(), tensor.reshape(-1)[1:]):
        assert int(digests.word_sum(view)) == int(digests.word_sum(view.clone()))


def test_states_are_named_by_parameters_and_numbers_count() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    precision = Precision(Amp(level="o0"), device=torch.device("cpu"))
    precision.prepare(model)
    state = Trained(model=model, optimizers=[optimizer], precision=precision).state()
    state["precision"]["scaler"] = {"scale": 2.0}
    before = digests.of_state(state)
    assert {"model.weight", "optimizer.weight.exp_avg", "optimizer.bias.step", "scaler.scale"} < set(before)
    assert all(len(digest) == 8 for digest in before.values())
    state["precision"]["scaler"] = {"scale": 1.0}
    again = digests.of_state(state)
    assert [name for name in before if before[name] != again[name]] == ["scaler.scale"]
