"""The settings of a trainer: one value, from the launcher or from the words after the trainer's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.gemm_layers import Chosen, Linear, choose
from amp_launcher.precision.levels import ENOUGH, MODES, PRESETS, Amp, Framework, LossScale, Parallel
from amp_launcher.precision.operators import check_ignored
from amp_launcher.recipe import Recipe, find
from amp_launcher.typed import (
    SettingsError,
    build,
    group,
    least,
    leaves,
    mapping,
    nearest,
    not_a_choice,
    plain,
    setting,
    show,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What is trained on."""

    name: str = setting("", "one of the recipe's data sets; empty is the recipe's first")
    dir: str | None = setting(None, "folder that holds the files, where the data set has files")
    download: bool = setting(False, "fetch missing files into data.dir, where the network allows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """When the state is saved, and how much of it is kept."""

    every: int = setting(100, "steps between checkpoints; 0 saves only at the end and when asked to stop", least(0))
    keep: int = setting(2, "number of newest checkpoints kept", least(1))
    stop_every: int = setting(0, "steps after which an attempt saves and stops; 0 is never", least(0))


DlprofReport = Literal[
    "all", "summary", "detail", "kernel", "iteration", "tensor", "op_type", "group_node", "expert_systems"
]
"""What `dlprof --reports` takes, by its `--help`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What is recorded of where the time goes."""

    tool: Literal["none", "framework", "nsys", "ncu", "dlprof"] = setting(
        "none", "framework is the framework's own profiler; nsys, ncu and dlprof are NVIDIA's, around the trainer"
    )
    start: int = setting(10, "first step that is recorded; those before it warm up", least(1))
    steps: int = setting(5, "steps that are recorded; dlprof records all from the first", least(1))
    key_node: str | None = setting(None, "dlprof: the operation that marks where an iteration begins")
    reports: tuple[DlprofReport, ...] = setting((), "dlprof: the reports that it writes as CSV; all is each of them")


def _share(key: str, value: float) -> None:
    if not 0 < value <= 1:
        raise SettingsError(f"{key}={value:g} must be above 0 and at most 1", key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the observed operations have to show."""

    share: float = setting(
        ENOUGH, "part of the matrix FLOPs due in half precision that has to run so, forward and backward each", _share
    )
    ignore: tuple[str, ...] = setting(
        (), "patterns of operators that are known to multiply no matrices, as torch prints them: mylib.*", check_ignored
    )
    stop: bool = setting(False, "recipe=script: ask it to save and stop once a later step contradicts the mode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify:
    """What is kept of each step for the launcher's `verify`."""

    record: bool = setting(
        False, "keep loss, gradient norm and a digest of each tensor for each step, in verify/ of the run folder"
    )


def _seconds(key: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 10**7:
        raise SettingsError(f"{key}={value:g} must be at least 0 seconds; 0 looks at nothing", key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """What happens where no step comes any more."""

    after: float | None = setting(
        None,
        "seconds without a step, or twice the slowest recent one where that is longer; null is 20 times the slowest, "
        "and at least 300; the first step has at least an hour; 0 is never",
        _seconds,
    )
    action: Literal["tell", "stop", "restart"] = setting(
        "tell",
        "tell writes the stacks of each rank and a line into its log; stop ends the run, too, as failed; restart "
        "ends it and starts it again from its last checkpoint, restart.max times",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One training job as the trainer sees it. `train` is the recipe's own dataclass."""

    recipe: str = setting("mnist", "the training job")
    framework: Literal[Framework, "none"] = setting(
        "torch", "framework of the trainer; none is for a script without them, which nothing can observe"
    )
    amp: Amp = group(Amp, "precision")
    loss_scale: LossScale = group(LossScale, "loss scaling")
    batch: int | None = setting(
        None, "samples per optimizer step over all devices and accumulation; null is the recipe's own", least(1)
    )
    accumulate: int = setting(1, "micro-batches per optimizer step", least(1))
    epochs: int | None = setting(
        None, "passes over the data; null is the recipe's own, or as many as steps needs", least(1)
    )
    steps: int | None = setting(None, "optimizer steps in all, instead of epochs", least(1))
    seed: int = setting(0, "seed of initial weights, data order and dropout")
    deterministic: bool | None = setting(None, "bit-identical repeats; null is true on a CPU without xla, else false")
    xla: bool = setting(False, "TensorFlow: compile with XLA")
    steps_per_execution: int = setting(1, "TensorFlow: optimizer steps of one tf.function call", least(1))
    compile: bool = setting(False, "torch: compile with torch.compile")
    parallel: Parallel | None = setting(
        None, "torch, several ranks: ddp copies the model to each, fsdp shards it over them; null is ddp"
    )
    tf32: bool | None = setting(
        None,
        "TF32 matmul and convolution on float32 operands; null is off at o0, on elsewhere, and left alone in torch "
        "scripts that make no Precision",
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto is cuda where there is one")
    data: Data = group(Data, "data set")
    checkpoint: Checkpoint = group(Checkpoint, "checkpoints")
    profile: Profile = group(Profile, "profiling")
    require_proof: bool | None = setting(
        None, "fail the run unless the requested precision was observed; null is true, but false for recipe=script"
    )
    proof: Proof = group(Proof, "what proves the precision")
    verify: Verify = group(Verify, "the record that verify compares")
    watchdog: Watch = group(Watch, "runs that hang")
    train: Any = setting(None, "the recipe's hyper-parameters")

    @property
    def batch_size(self) -> int:
        """`batch`, where the recipe's own stands in its place."""
        assert self.batch is not None
        return self.batch

    @property
    def proof_required(self) -> bool:
        """Whether a run whose mode is `unknown` or `emulated` fails. A contradiction fails every run."""
        return self.recipe != "script" if self.require_proof is None else self.require_proof


PLAN_SCHEMA = 2
"""Of plan.json, which holds settings."""
_PROFILERS = {
    "start": ("framework", "nsys", "ncu", "dlprof"),
    "steps": ("framework", "nsys", "ncu"),
    "key_node": ("dlprof",),
    "reports": ("dlprof",),
}
"""The keys of `profile`, and the tools that each is for."""


def _check_no_claim(settings: Settings) -> None:
    """Refuse what a job without a mode can't have. Raises `SettingsError`."""
    if settings.recipe != "script":
        raise SettingsError(
            f"amp=none: recipe={settings.recipe} trains in a mode; say amp=o0, or name a script of your own"
        )
    given = {"tf32": settings.tf32, "xla": settings.xla, "compile": settings.compile}
    given |= {"require_proof": settings.require_proof, "train.precision": settings.train.precision == "launcher"}
    for key, value in given.items():
        if value:
            text = "launcher" if key == "train.precision" else show(value)
            raise SettingsError(
                f"{key}={text} with amp=none, at which nothing is applied to the script and nothing observed; say "
                "amp=o0, or leave it out",
                key,
            )
    if settings.profile.tool == "framework":
        raise SettingsError("profile=framework counts a script's steps, and amp=none observes none; say profile=nsys")


def check_settings(settings: Settings, world_size: int = 1) -> None:
    """Refuse counts that can't be carried out. Raises `SettingsError`."""
    recipe = find(settings.recipe)
    recipe.check(settings)
    if not settings.amp.claims:
        _check_no_claim(settings)
    preset = settings.amp.preset
    if preset and MODES[preset].tf32 is not None and settings.tf32 != MODES[preset].tf32:
        other = "tf32" if settings.tf32 else "fp32"
        raise SettingsError(f"tf32={show(settings.tf32)} with amp={preset}; say amp={other}")
    if settings.steps_per_execution > 1 and settings.framework != "tensorflow":
        raise SettingsError(f"steps_per_execution={settings.steps_per_execution} is TensorFlow's; leave it out")
    if settings.framework == "tensorflow" and settings.xla and settings.deterministic and recipe.max_pools:
        raise SettingsError(
            "deterministic=true with xla=true: XLA has no deterministic program for the gradient of max-pooling, and "
            f"recipe={recipe.name} has max-pooling; say deterministic=false or xla=false"
        )
    if settings.compile and settings.framework != "torch":
        instead = (
            "for TensorFlow say xla=true" if settings.framework == "tensorflow" else "Paddle has no counterpart here"
        )
        raise SettingsError(f"compile=true is torch.compile; {instead}")
    if settings.parallel and settings.framework != "torch":
        raise SettingsError(
            f"parallel={settings.parallel} is torch's, and this is framework={settings.framework}; leave it out"
        )
    if settings.parallel == "fsdp" and recipe.unsharded:
        raise SettingsError(
            f"parallel=fsdp: recipe={recipe.name} can't be sharded: {recipe.unsharded}; say parallel=ddp"
        )
    if settings.profile.tool == "framework" and settings.framework == "paddle":
        raise SettingsError("profile=framework supports torch and TensorFlow, not Paddle; say profile=nsys")
    for key, takes in _PROFILERS.items():
        value = getattr(settings.profile, key)
        if value != getattr(Profile(), key) and settings.profile.tool not in takes:
            raise SettingsError(
                f"profile.{key}={show(value)} belongs to profile={' or '.join(takes)}, and this is "
                f"profile={settings.profile.tool}",
                f"profile.{key}",
            )
    start = settings.profile.start
    if settings.profile.tool != "none" and settings.steps is not None and start >= settings.steps:
        raise SettingsError(
            f"profile.start={start} and steps={settings.steps}: the last step proves the precision, so profiled ones "
            "come before it; say more steps or an earlier start"
        )
    share = world_size * settings.accumulate
    if settings.batch is not None and settings.batch % share:
        lower = settings.batch - settings.batch % share
        nearest = " or ".join(str(size) for size in (lower, lower + share) if size > 0)
        raise SettingsError(
            f"batch={settings.batch} does not divide by {world_size} device{'s' * (world_size > 1)} x "
            f"accumulate={settings.accumulate}; say batch={nearest}"
        )
    gemm_layers(settings, recipe, world_size)


def gemm_layers(settings: Settings, recipe: Recipe, devices: int) -> Chosen | None:
    """The layers that `amp.gemm` converts of a recipe's network, before it is built; None at amp.gemm=half, and where
    they aren't known, as in a script. Raises `SettingsError` as `choose` does."""
    amp = settings.amp
    if amp.gemm == HALF or recipe.name == "script":
        return None
    layers = recipe.layers(settings.train)
    if not layers:
        return None
    share = (settings.batch or 0) // (devices * settings.accumulate)
    linears = [layer for layer in layers if layer.kind == "linear"]
    sizes = {layer.name: Linear(layer.inputs, layer.outputs, share * layer.pixels) for layer in linears}
    return choose(amp, sizes, f"recipe={recipe.name}")


def from_values(values: Mapping[str, Any], recipe: Recipe) -> Settings:
    """The settings that nested plain values spell, as a configuration or a plan has them. Single keys of the loss scale
    refine its preset. Raises `SettingsError`."""
    groups = {name: mapping(values.get(name), name) for name in ("train", "loss_scale")}
    scale = dict(groups["loss_scale"])
    preset = scale.pop("preset", "auto")
    if preset not in PRESETS:
        raise SettingsError(not_a_choice("loss_scale", preset, PRESETS), "loss_scale")
    return dataclasses.replace(
        build(Settings, {name: value for name, value in values.items() if name not in groups}),
        loss_scale=build(LossScale, {**plain(PRESETS[preset]), **scale}, prefix="loss_scale."),
        train=build(recipe.settings, groups["train"], prefix="train."),
    )


def _refuse_unread(settings: Settings, recipe: Recipe) -> None:
    if recipe.takes is None:
        return
    defaults = leaves(plain(Settings()))
    for key, value in leaves(plain(settings)).items():
        if key.partition(".")[0] in (*recipe.takes, "train") or value == defaults[key]:
            continue
        raise SettingsError(
            f"{key}={show(value)}: recipe={recipe.name} decides that by itself; its arguments go after --, as in "
            "`-- --batch-size 64`",
            key,
        )


def with_recipe_defaults(settings: Settings, recipe: Recipe) -> Settings:
    """The settings with the recipe's own batch, epochs and data where none was named.

    Raises `SettingsError` for data that the recipe doesn't know or that has fewer samples than the batch, and for
    epochs and steps together.
    """
    _refuse_unread(settings, recipe)
    if not recipe.data:
        return settings
    name = settings.data.name or next(iter(recipe.data))
    if name not in recipe.data:
        choices = f"{', '.join(recipe.data)}, the data of recipe={recipe.name}"
        raise SettingsError(f"data={name} is not one of {choices}{nearest(name, recipe.data)}", "data.name")
    if settings.epochs is not None and settings.steps is not None:
        raise SettingsError(f"epochs={settings.epochs} and steps={settings.steps}: say one of them", "steps")
    layout, epochs = recipe.data[name], settings.epochs
    if epochs is None and settings.steps is None:
        epochs = layout.epochs or recipe.epochs
    batch = settings.batch if settings.batch is not None else layout.batch or recipe.batch
    if layout.samples is not None and batch > layout.samples:
        raise SettingsError(f"batch={batch} is more than the {layout.samples} samples of data={name}")
    return dataclasses.replace(
        settings,
        batch=batch,
        epochs=epochs,
        data=dataclasses.replace(settings.data, name=name),
    )
