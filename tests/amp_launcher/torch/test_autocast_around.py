"""Autocast around a script's steps, where its own contexts make it other than by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from amp_launcher.torch.autocast_around import AutocastAround


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_within_an_autocast_for_another_device_each_step_multiplies_its_own_weights() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(8, 1), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with AutocastAround("cpu", torch.bfloat16).applied(), torch.autocast("cuda"):
        for _ in range(3):
            outputs = model(inputs)
            weight, bias = (parameter.detach().bfloat16() for parameter in model.parameters())
            assert torch.equal(outputs, nn.functional.linear(inputs.bfloat16(), weight, bias))
            optimizer.zero_grad()
            outputs.square().mean().backward()
            optimizer.step()
