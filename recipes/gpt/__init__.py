"""The GPT recipe: a decoder that predicts the next token, and its learning rate. No framework is imported here.

The network is that of nanochat, nanoGPT and torchtitan: RMSNorm before each part of a block, rotary positions, causal
attention, SwiGLU or squared ReLU, no biases. AdamW decays matrices only; the rate warms up and falls by half a cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from amp_launcher.recipe import DataLayout, Layer, Recipe
from amp_launcher.typed import SettingsError, above_zero, below_one, least, setting

if TYPE_CHECKING:
    from amp_launcher.settings import Settings

BYTES = 256
"""Token ids of data=stdlib, whose tokens are bytes."""
ROUNDING = 64
"""SwiGLU's hidden features are 8/3 of the width, rounded up to a multiple of this: then both MLPs are equally large."""
EPSILON = 1e-8
"""AdamW's."""
TOKEN_FILES = ("train.bin", "val.bin")
"""Of data=tokens, in data.dir: token ids, one after another, as nanoGPT writes them."""
ID_BYTES = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class GptSettings:
    """Hyper-parameters of the GPT recipe."""

    vocab_size: int = setting(BYTES, "token ids are from 0 up to, but not, this; 256 for bytes", least(2))
    layers: int = setting(4, "blocks of attention and MLP", least(1))
    width: int = setting(128, "features of a token between blocks", least(2))
    heads: int = setting(4, "attention heads, of width / heads features each", least(1))
    context: int = setting(256, "tokens of a sample", least(2))
    mlp: Literal["swiglu", "relu2"] = setting("swiglu", "gated by SiLU, or the square of ReLU")
    tied: bool = setting(True, "the last layer's weights are those of the embedding")
    recompute: Literal["none", "selective", "full"] = setting(
        "none", "activations computed again in backward: selective keeps matrix products and attention, full nothing"
    )
    lr: float = setting(3e-3, "AdamW's peak learning rate", above_zero)
    warmup_steps: int = setting(50, "steps of linear warm-up, at most a fifth of the run, before the cosine", least(0))
    lr_end: float = setting(0.1, "learning rate at the end, as a share of the peak", least(0))
    weight_decay: float = setting(0.1, "AdamW's, on matrices; not on norms", least(0))
    beta1: float = setting(0.9, "AdamW's decay of averaged gradients", below_one)
    beta2: float = setting(0.95, "AdamW's decay of averaged squared gradients", below_one)
    clip: float | None = setting(1.0, "gradient norm to clip to, after unscaling; null is no clipping", above_zero)
    held_out: int = setting(512, "held-out samples that are measured, at most, spread evenly", least(1))
    ids: Literal["uint16", "uint32"] = setting("uint16", "data=tokens: type of the ids in the files, little-endian")
    bytes_per_token: float | None = setting(
        None, "data=tokens: mean bytes of a held-out token, for bits per byte", above_zero
    )

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            less = self.width // (2 * self.heads) * 2 * self.heads
            choices = " or ".join(str(width) for width in (less, less + 2 * self.heads) if width)
            raise SettingsError(
                f"train.width={self.width} must be a multiple of 2 x train.heads={self.heads}: rotary positions turn "
                f"the features of a head in pairs; say train.width={choices}, or another train.heads"
            )

    @property
    def hidden(self) -> int:
        """Features inside the MLP."""
        return -(-8 * self.width // (3 * ROUNDING)) * ROUNDING if self.mlp == "swiglu" else 4 * self.width


def check_data(settings: Settings) -> None:
    """Refuse what data=stdlib can't be trained with. Raises `SettingsError`."""
    train: GptSettings = settings.train
    if settings.data.name == "tokens":
        return
    if train.vocab_size < BYTES:
        raise SettingsError(
            f"train.vocab_size={train.vocab_size} with data=stdlib, whose tokens are bytes: say {BYTES} or more"
        )
    if train.bytes_per_token is not None:
        raise SettingsError("train.bytes_per_token belongs to data=tokens", "train.bytes_per_token")


def check_size(settings: GptSettings, path: str, size: int) -> None:
    """Refuse a file of token ids by its size in bytes. Raises `SettingsError`."""
    id_bytes = ID_BYTES[settings.ids]
    if not size:
        raise SettingsError(f"{path} is empty; it should hold token ids of train.ids={settings.ids}", "data.dir")
    if size % id_bytes:
        advice = "train.ids=uint16 takes 2" if settings.ids == "uint32" and size % 2 == 0 else "is it cut off?"
        raise SettingsError(
            f"{path} has {size:,} bytes, which is not a whole number of train.ids={settings.ids} of {id_bytes} bytes; "
            f"{advice}",
            "train.ids",
        )
    check_length(settings, path, size // id_bytes)


def check_length(settings: GptSettings, text: str, tokens: int) -> None:
    """Refuse a text that is shorter than a sample. Raises `SettingsError`."""
    if tokens <= settings.context:
        raise SettingsError(
            f"{text} has {tokens:,} tokens, and a sample of train.context={settings.context} takes "
            f"{settings.context + 1}; say a smaller train.context, or give more text",
            "train.context",
        )


def check_files(settings: Settings, sizes: Mapping[str, int | None]) -> None:
    """Refuse files of data=tokens by their sizes. Raises `SettingsError`."""
    if settings.data.name != "tokens":
        return
    for path, size in sizes.items():
        if size is None:
            raise SettingsError(f"data=tokens: {path} is not a file that can be read", "data.dir")
        check_size(settings.train, path, size)
        samples = (size // ID_BYTES[settings.train.ids] - 1) // settings.train.context
        if path.endswith(TOKEN_FILES[0]) and settings.batch and settings.batch > samples:
            raise SettingsError(
                f"batch={settings.batch} is more than the {samples:,} samples of train.context="
                f"{settings.train.context} in {path}; say a smaller batch or train.context"
            )


def layers(settings: GptSettings) -> tuple[Layer, ...]:
    """A matrix product's rows are the tokens of all samples: `pixels` are the tokens of one."""
    width, hidden = settings.width, settings.hidden
    # With full recomputation only a block's output is kept, which is as large as the output of `down`.
    kept = 0 if settings.recompute == "full" else 1

    def linear(name: str, inputs: int, outputs: int, copies: int = kept) -> Layer:
        return Layer(name=name, kind="linear", inputs=inputs, outputs=outputs, pixels=settings.context, copies=copies)

    network = []
    for index in range(settings.layers):
        network += [
            linear(f"blocks.{index}.attention.qkv", width, 3 * width),
            linear(f"blocks.{index}.attention.out", width, width),
            linear(f"blocks.{index}.mlp.up", width, hidden * (2 if settings.mlp == "swiglu" else 1)),
            linear(f"blocks.{index}.mlp.down", hidden, width, copies=1),
        ]
    return (*network, linear("head", width, settings.vocab_size, copies=1))


def flops_per_token(settings: GptSettings) -> int:
    """Floating-point operations of a token, forward and backward: 6 N + 12 L H Q T.

    Source: Chowdhery et al., "PaLM" (2022), appendix B: N weights that are multiplied, L layers, H heads of Q features,
    T tokens of context. A table that is only looked up multiplies nothing, and what is computed again doesn't count.
    """
    weights = sum(layer.weights for layer in layers(settings))
    return 6 * weights + 12 * settings.layers * settings.width * settings.context


def learning_rate(settings: GptSettings, step: int, total: int) -> float:
    """The rate of optimizer step `step`, counted from 0, of `total`."""
    warmup = min(settings.warmup_steps, total // 5)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    share = 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    return settings.lr * (settings.lr_end + (1 - settings.lr_end) * share)


def schedule(settings: Settings, samples: int) -> Callable[[int], float]:
    """The learning rate of each optimizer step of a run over so many samples."""
    total = settings.steps or (settings.epochs or 1) * (samples // settings.batch_size)
    return lambda step: learning_rate(settings.train, step, total)


RECIPE = Recipe(
    name="gpt",
    settings=GptSettings,
    batch=8,
    epochs=1,
    frameworks=("torch",),
    check=check_data,
    check_files=check_files,
    epsilons={"AdamW": EPSILON},
    data={
        "stdlib": DataLayout(help="bytes of the Python files of the standard library that the trainer runs with"),
        "tokens": DataLayout(
            files=(TOKEN_FILES,),
            source="a tokenizer of your own: token ids as numpy's tofile writes them",
            help="token ids of any text: train.bin and val.bin in data.dir",
        ),
    },
    layers=layers,
)
