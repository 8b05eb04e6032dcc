"""What a layer says is kept for the backward pass, against what autograd keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recipes import efficientnet as efficientnet_recipe
from recipes import resnet50 as resnet50_recipe
from recipes.torch_ import efficientnet, resnet50

SIDE = 64
RESNET = resnet50_recipe.Resnet50Settings(width=16, image_size=SIDE)
EFFICIENTNET = efficientnet_recipe.EfficientnetSettings(image_size=SIDE)


def kept(model: torch.nn.Module, samples: int) -> int:
    """Bytes that autograd keeps of a forward pass over so many images, each storage once."""
    found: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage  # held, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(torch.zeros(samples, 3, SIDE, SIDE))
    return sum(each.nbytes() for each in found.values())


@pytest.mark.parametrize(
    ("model", "layers", "more"),
    [
        (lambda: resnet50.Net(RESNET), resnet50_recipe.layers(RESNET), 1.1),
        # torch keeps what goes into ReLU6 as well as what comes out, and other frameworks don't.
        (lambda: efficientnet.Net(EFFICIENTNET), efficientnet_recipe.layers(EFFICIENTNET), 1.5),
    ],
    ids=["resnet50", "efficientnet"],
)
def test_no_less_is_kept_of_a_sample_than_its_layers_say_and_not_much_more(
    model: Any, layers: Any, more: float
) -> None:
    built = model()
    measured = (kept(built, 4) - kept(built, 2)) / 2
    reckoned = 4 * sum(layer.kept for layer in layers)
    assert reckoned <= measured <= more * reckoned
