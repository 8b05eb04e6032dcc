"""Linear layers whose matrix products run in other number formats, `amp.gemm`."""

from __future__ import annotations

import pytest
import torch

from recipes.precision.gemm import FORMATS, ROLES


@pytest.mark.parametrize("name", FORMATS)
def test_operands_are_dtypes_of_torch(name: str):
    for role in ROLES:
        assert all(isinstance(getattr(torch, each), torch.dtype) for each in FORMATS[name].operands(role))


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.mechanism == "torchao"])
def test_the_table_says_what_torchao_promises(name: str):
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import ScalingType

    config = Float8LinearConfig.from_recipe_name(FORMATS[name].recipe)
    casts = {
        "forward": (config.cast_config_input, config.cast_config_weight),
        "input_gradient": (config.cast_config_grad_output, config.cast_config_weight_for_grad_input),
        "weight_gradient": (config.cast_config_grad_output_for_grad_weight, config.cast_config_input_for_grad_weight),
    }
    for role in ROLES:
        half = torch.bfloat16
        dtypes = [half if each.scaling_type is ScalingType.DISABLED else each.target_dtype for each in casts[role]]
        assert dtypes == [getattr(torch, each) for each in FORMATS[name].operands(role)]
