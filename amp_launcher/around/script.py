"""The user's own file as a recipe: which precision can be applied to it from outside, and how.

Standard library only: the launcher refuses by it before anything is queued, the wrapper around the file applies it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from amp_launcher.around import library_switch
from amp_launcher.around.script_source import Source
from amp_launcher.precision import resolved
from amp_launcher.precision.gemm import HALF
from amp_launcher.precision.levels import PRESETS, named_operations
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.support import Support, support_for
from amp_launcher.recipe import Recipe
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, setting

IN_IMAGE = "image:"
"""In front of a file that is only in the container's image."""

NGC_TENSORFLOW1 = ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE")
"""Variables that NVIDIA's own builds of TensorFlow 1 read; every other TensorFlow passes over them in silence."""

REWRITE = "enable_mixed_precision_graph_rewrite"
"""TensorFlow 1's function for mixed precision."""
MIXED_UP = re.compile(r"don't all match|does not match type|was expected to be a \w+ tensor but is a")
"""Part of TensorFlow's errors where an operation gets two dtypes."""

LINES = {
    "torch": """\
    from amp_launcher.torch import Precision
    precision = Precision()                              # the mode that the launcher was asked for
    model, optimizer = precision.prepare(model, optimizer)  # before DistributedDataParallel and torch.compile
    with precision:                                      # in evaluation too
        loss = ...                                       # of model(...), which is float32
    precision.backward(loss)                             # for loss.backward()
    precision.step(optimizer)                            # for optimizer.step(); clip=1.0 for clip_grad_norm_""",
    "tensorflow": """\
    from amp_launcher.tensorflow import Precision
    precision = Precision()                              # the mode that the launcher was asked for
    model, optimizer = precision.prepare(make_model, optimizer)  # a function that makes the model
                                                         # then compile and fit, or:
    with precision:                                      # for tf.GradientTape(), in a tf.function
        loss = ...                                       # of model(...), which is float32
    precision.backward(loss)                             # for tape.gradient(...)
    precision.step(optimizer)                            # for optimizer.apply(...)""",
    "paddle": """\
    from amp_launcher.paddle import Precision
    precision = Precision()                              # the mode that the launcher was asked for
    model, optimizer = precision.prepare(model, optimizer)  # before paddle.DataParallel
    with precision:
        loss = ...                                       # of model(...), which is float32
    precision.backward(loss)                             # for loss.backward()
    precision.step(optimizer)                            # for optimizer.step()""",
}
"""Lines that make a script apply any level itself."""
LIGHTNING_LINES = """\
    from amp_launcher.torch.libraries.lightning_precision import LightningPrecision
    trainer = Trainer(plugins=LightningPrecision())      # the mode that the launcher was asked for
                                                         # a Fabric loop: Precision, as docs/scripts.md has it"""
"""The same for Lightning's Trainer."""
TRAINER_LINES = """\
    from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer
    trainer = PrecisionTrainer(...)                      # for Trainer(...): the mode that the launcher was asked for
                                                         # for another's, as SFTTrainer(...), Own(...):
    class Own(PrecisionTrainer, SFTTrainer): ..."""
"""The same for transformers' Trainer."""
ACCELERATE_LINES = """\
    from amp_launcher.torch import Precision
    precision = Precision()                              # the mode that the launcher was asked for
    model, optimizer = precision.prepare(model, optimizer)  # before accelerator.prepare
    with precision:                                      # in evaluation too
        loss = ...                                       # of model(...), which is float32
    precision.backward(loss / k)                         # for accelerator.backward(loss), k micro-batches a step
    if accelerator.sync_gradients:
        precision.step(optimizer, clip=1.0)              # for clip_grad_norm_ and optimizer.step()"""
"""The same for accelerate, whose wrapped optimizer stands for the prepared one."""
CLI_ARGUMENT = (
    "pass `--trainer.plugins=amp_launcher.torch.libraries.lightning_precision.LightningPrecision` after -- and say "
    "train.precision=script"
)
"""The same for LightningCLI."""
_SCALES = "if the script scales it itself, say train.precision=script"
_LIBRARY_LINES = {
    library_switch.LIGHTNING: LIGHTNING_LINES,
    library_switch.TRANSFORMERS: TRAINER_LINES,
    library_switch.ACCELERATE: ACCELERATE_LINES,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptSettings:
    """How the file is started."""

    precision: Literal["auto", "launcher", "script"] = setting(
        "auto",
        "who applies amp: the launcher around the file, or the script itself; auto is script where the file makes a "
        "Precision",
    )
    processes: int = setting(1, "processes on each node, started by torchrun where there are several")
    bare: bool = setting(
        False, "start the file alone, with nothing of this project around it, for images too old for that; no proof"
    )
    rate: str = setting(
        "", "with bare: text in front of the samples/s that the file prints; the last such number is its throughput"
    )
    published: float | None = setting(
        None, "published samples/s of the file, which `report` shows beside the measured ones"
    )
    command: bool = setting(False, "the file is a program that starts by itself, and not Python; `cmd` says it")


def in_image(named: str) -> bool:
    """Whether a script, as it was named, is only in the container's image."""
    return named.startswith(IN_IMAGE)


def instead(error: BaseException) -> str:
    """Advice where the error is that a framework's older function is gone, or that a script mixes the dtypes of Keras's
    layers with others; or an empty string."""
    if isinstance(error, AttributeError) and REWRITE in str(error):
        return (
            f"TensorFlow 2 has no tf.train.experimental.{REWRITE}: say "
            "`from amp_launcher.tensorflow.graph_rewrite import enable` and `opt = enable(opt)`, which does the same"
        )
    keras: Any = sys.modules.get("keras")
    if hasattr(keras, "config") and MIXED_UP.search(str(error)):
        policy = keras.config.dtype_policy()
        if policy.compute_dtype != "float32" and policy.compute_dtype in str(error):
            return (
                f"under Keras's policy {policy.name} its layers give {policy.compute_dtype}: cast what meets them, as "
                "by tf.cast(other, output.dtype); on a CPU amp=o1 needs no casts"
            )
    return ""


def by_script(train: ScriptSettings, source: Source) -> bool:
    """Whether the script applies its precision itself."""
    return source.asks if train.precision == "auto" else train.precision == "script"


def support(settings: Settings, dtype: str, device: str, source: Source, *, ngc_tensorflow1: bool = False) -> Support:
    """What carries the level out in a script, with the dtype resolved, or the reason why nothing can.

    `ngc_tensorflow1` says that it runs in an image that holds NVIDIA's own build of TensorFlow 1.
    """
    amp, framework, level, train = settings.amp, settings.framework, settings.amp.level, settings.train
    if not amp.claims:
        return Support(mechanism="none")
    if framework == "none":
        return _without_framework(level, train)
    if source.decided == library_switch.CLI:
        add = CLI_ARGUMENT
    else:
        lines = _LIBRARY_LINES.get(source.library, LINES[framework])
        add = f"let the script apply it, with these lines:\n{lines}"
    if amp.gemm != HALF and (train.bare or not by_script(train, source)):
        return Support(
            unsupported=f"amp.gemm={amp.gemm} converts the model's layers, which only the script can do; {add}"
        )
    if train.bare:
        return _bare(settings, ngc_tensorflow1)
    own = support_for(framework, level, dtype, settings.xla, device, amp.master_weights)
    if own.unsupported:
        return own
    if by_script(train, source):
        return own if source.asks else dataclasses.replace(own, lists="observed")
    if settings.xla and device == "cpu":
        return Support(unsupported="xla=true does nothing around a script on a CPU; use jit_compile=True in the script")
    if level == "o0":
        return own
    lists = named_operations(amp)
    denies = bool(lists.pop("deny")) and framework == "torch" and bool(source.library)
    if any(lists.values()) or amp.keep_fp32 or (amp.deny and not denies):
        return Support(
            unsupported=f"amp's operation lists and amp.keep_fp32 can't be applied from outside the script; {add}"
        )
    if framework == "torch":
        return _around_torch(level, dtype, device, source, denies, add)
    if framework == "tensorflow":
        return dataclasses.replace(_around_tensorflow(level, dtype, source, own, add), lists="refused")
    return Support(unsupported=f"no precision can be applied from outside a script in Paddle; {add}")


def resolve(
    settings: Settings,
    source: Source,
    *,
    device: str,
    capability: tuple[int, int] | None,
    environ: Mapping[str, str],
    ngc_tensorflow1: bool = False,
) -> ResolvedPrecision:
    """The precision of a script (`amp_launcher.precision.resolved`), whose mechanism is what can be applied around it.

    Raises `SettingsError` where nothing can, and for `compile` where the script's file does not ask for its precision,
    unless `train.precision=script` says that it will.
    """
    if settings.compile and not by_script(settings.train, source):
        raise SettingsError(
            "compile=true: a script compiles its model itself, and this one makes no Precision, which reads "
            "it; leave compile out, or say train.precision=script where a module that it imports makes one"
        )
    precision = resolved.resolve(
        settings.amp,
        settings.loss_scale,
        framework=settings.framework,
        device=device,
        capability=capability,
        environ=environ,
        tf32=settings.tf32,
        xla=settings.xla,
        support=lambda dtype: support(settings, dtype, device, source, ngc_tensorflow1=ngc_tensorflow1),
    )
    of_library = precision.mechanism in library_switch.VARIABLES
    if of_library and precision.dtype == "float16" and settings.loss_scale not in (PRESETS["auto"], PRESETS["dynamic"]):
        raise SettingsError(
            f"loss_scale.mode={settings.loss_scale.mode}: the script's library scales the loss by its own rule; leave "
            "loss_scale out",
            "loss_scale",
        )
    untyped = settings.framework == "torch" and settings.tf32 is None and not source.asks
    return dataclasses.replace(precision, tf32=None) if untyped else precision


def handed_over(precision: ResolvedPrecision) -> dict[str, str]:
    """The environment variables that set the precision of a script's library."""
    return library_switch.environment(precision.mechanism, precision.level, precision.dtype)


def _bare(settings: Settings, ngc_tensorflow1: bool) -> Support:
    level = settings.amp.level
    if settings.train.precision == "script":
        return Support(mechanism="script")
    if settings.framework == "tensorflow" and ngc_tensorflow1:
        if level in ("o0", "o1") and settings.amp.dtype != "bfloat16":
            return Support(mechanism="ngc_environment")
        return Support(
            unsupported="NVIDIA's TensorFlow 1 images have float32 and the float16 graph rewrite: say amp=o0 or amp=o1"
        )
    if level == "o0":
        return Support(mechanism="float32")
    return Support(
        unsupported=f"train.bare=true starts the script with nothing around it, so nothing would apply amp={level}; "
        "if the script applies it, say train.precision=script"
    )


def _without_framework(level: str, train: ScriptSettings) -> Support:
    if train.precision == "script":
        return Support(mechanism="script")
    if level == "o0":
        return Support(mechanism="float32")
    return Support(
        unsupported=f"amp={level}: framework=none is a script without {', '.join(LINES)}, so nothing can apply it; say "
        "amp=o0, or train.precision=script if the script applies it"
    )


def _around_torch(level: str, dtype: str, device: str, source: Source, denies: bool, add: str) -> Support:
    """Autocast around the script is independent of its library and of the precision set there. The library's switch is
    used for everything else: float16, which needs a loss scale, all-half modes, and `amp.deny`."""
    if level == "o1" and dtype == "bfloat16" and not denies:
        by_library = source.library and not source.decided
        return Support(mechanism="autocast_around", lists="observed" if by_library else "refused")
    if source.library:
        return library_switch.support(source.library, source.decided, level, dtype, device, add)
    if level != "o1":
        return Support(unsupported=f"amp={level} casts the model, which only the script can do; say amp=o1, or {add}")
    return Support(unsupported=f"float16 needs a scaled loss: {_SCALES}; if not, say amp=bf16-mixed, or {add}")


def _around_tensorflow(level: str, dtype: str, source: Source, own: Support, add: str) -> Support:
    if dtype == "bfloat16":
        return own
    if level == "o2" and source.fits:
        return own
    scaled = " (Keras scales it at amp=o2, in compile and fit only)" if level == "o2" else ""
    return Support(
        unsupported=f"float16 needs a scaled loss{scaled}: {_SCALES}; if not, say amp.dtype=bfloat16, or {add}"
    )


def check_script(settings: Settings) -> None:
    """Refuse what no script could be started with. Raises `SettingsError`."""
    train: ScriptSettings = settings.train
    if train.processes < 1:
        raise SettingsError(f"train.processes={train.processes} must be at least 1")
    if train.processes > 1 and settings.framework != "torch":
        raise SettingsError(
            f"train.processes={train.processes}: torchrun starts scripts in torch, and this one is in "
            f"{settings.framework}"
        )
    if train.command and (settings.amp.claims or not train.bare):
        raise SettingsError(
            "train.command=true: no mode can be applied to a program that is not Python; say `cmd -- FILE`, or "
            "amp=none train.bare=true"
        )
    if train.bare and settings.proof_required:
        raise SettingsError(
            "train.bare=true: nothing observes what such a script runs, so nothing can be proved; leave out "
            "require_proof=true",
            "require_proof",
        )


RECIPE = Recipe(
    name="script",
    settings=ScriptSettings,
    batch=0,
    epochs=0,
    frameworks=(*LINES, "none"),
    check=check_script,
    takes=(
        "recipe",
        "framework",
        "amp",
        "loss_scale",
        "xla",
        "compile",
        "tf32",
        "device",
        "profile",
        "require_proof",
        "proof",
        "watchdog",
    ),
)
