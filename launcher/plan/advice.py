"""Advice about a job on its GPUs before it is queued; an error only for what cannot fit.

Pure. Sources: NVIDIA's "Matrix Multiplication Background" user's guide, table 1, for the sizes that tensor cores want:
multiples of 16 bytes (8 numbers in half precision, 4 in TF32), without which cuBLAS before 11.0 and cuDNN before 7.6.3
use none and later ones are slower, and of 128 bytes (64 and 32) for the most speed on an A100, read here as from its
compute capability on. "Convolutional Layers" user's guide: 4 input channels for a first convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_launcher import settings
from amp_launcher.precision import adam_epsilon, gemm_layers
from amp_launcher.precision.gemm import ADD_TO_IMAGE, FORMATS, HALF, LIBRARY, library_problem, needed
from amp_launcher.recipe import Layer
from amp_launcher.shown import some
from amp_launcher.typed import SettingsError
from launcher.config.spec import JobSpec
from launcher.probe.facts import Facts, Gpu

NAMED = 4
"""Layers that a sentence names; the others are counted."""
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number."""
BYTES = {"o0": 8, "o1": 8, "o2": 8, "o3": 4}
"""A parameter's least, gradient included, in every framework: float32 twice; at o2 half, master and half gradient, or
float32 twice; at o3 half twice. Optimizer state, activations and the framework's own come on top."""
SMALL = 0.01
"""Share of the weights below which a last layer isn't worth a word."""
MUCH = 0.5
"""Share of a GPU's memory from which the least that is needed is worth telling."""


def check_memory(spec: JobSpec, gpus: Sequence[Gpu], device: str, devices: int) -> None:
    """Refuse a model that the known GPUs have too little memory for. Raises `SettingsError`."""
    training = spec.training
    least, memory = _least_memory(spec, devices), _memory(gpus)
    if device == "cuda" and memory and least > memory:
        torch = training.framework == "torch" and not spec.recipe.unsharded
        shards = torch and _least_in_shards(spec, devices) <= memory
        raise SettingsError(
            f"recipe={spec.recipe.name} with these settings needs {_gib(least)} for weights and gradients alone at "
            f"amp={training.amp.level}, and {_card(gpus)} has {_gib(memory)}; "
            f"{'say parallel=fsdp, which shards it over them' if shards else 'make the model smaller'}",
            "train",
        )


def advice(
    spec: JobSpec, gpus: Sequence[Gpu], device: str, dtype: str, devices: int, capability: tuple[int, int] | None
) -> tuple[str, ...]:
    """Sentences for people. `dtype` is the half precision in use, float32 at o0; `devices` the number of them on all
    nodes; `capability` that of the GPUs, None where it is unknown."""
    training = spec.training
    sentences = list(_advice_on_gpus(gpus)) if device == "cuda" else []
    epsilons = None if spec.recipe.name == "script" else spec.recipe.epsilons
    sentences += filter(None, [adam_epsilon.advice(training.amp, dtype, epsilons)])
    if device == "cpu" and training.framework == "tensorflow" and dtype == "bfloat16":
        sentences.append(_TENSORFLOW_ON_A_CPU)
    if device != "cuda" or spec.recipe.name == "script":
        return tuple(sentences)
    assert training.batch is not None, "recipes other than script have a batch of their own"
    share = training.batch // (devices * training.accumulate)
    unit, name = _unit(spec, dtype)
    if unit:
        layers = spec.recipe.layers(training.train)
        fastest = f" (fastest: {8 * unit})" if capability and capability >= (8, 0) else ""
        want = f"tensor cores want multiples of {unit} in {name}{fastest}"
        if odd := list(_odd(layers, unit)):
            sentences.append(f"{want}: {some(odd)}")
        if layers and layers[0].kind == "conv" and layers[0].inputs == 3:
            sentences.append(f"{layers[0].name} takes 3 channels: 4, padded, are faster on tensor cores")
        if share * _rows(layers) % unit:
            what = "batch per device and micro-batch" if training.accumulate > 1 else "batch per device"
            sentences.append(f"{want}: the {what} is {share}")
    return (*sentences, *_advice_on_memory(spec, gpus, dtype, share, devices))


_TENSORFLOW_ON_A_CPU = "on a CPU without AVX-512 a step in bfloat16 takes TensorFlow about ten times one in float32"
"""Seen with TensorFlow 2.21 on a CPU with AVX2: 3.0 s of processor time against 0.3 s, with oneDNN and without it."""
_ON_A_CPU = {
    "yes": "amp.gemm={gemm} on a CPU shows that it is applied; a step takes about five times one in bfloat16",
    "emulated": "amp.gemm={gemm} on a CPU is emulated: operands are rounded to it and multiplied in bfloat16, which is "
    "no proof, so that only require_proof=false lets a run continue",
}


def advice_on_gemm(spec: JobSpec, facts: Facts, device: str, devices: int) -> Iterator[str]:
    """The layers that `amp.gemm` converts and leaves out, and what isn't known before the job starts."""
    gemm = spec.training.amp.gemm
    if gemm == HALF:
        return
    if chosen := settings.gemm_layers(spec.training, spec.recipe, devices):
        yield gemm_layers.line(gemm, *chosen)
    if device == "cpu":
        yield _ON_A_CPU[FORMATS[gemm].cpu].format(gemm=gemm)
    if spec.launch.container.kind != "none":
        yield f"not checked: {needed(gemm)} in the image; a run ends at once without it: {ADD_TO_IMAGE}"
    elif spec.launch.cluster.setup and library_problem(gemm, facts.packages.get(LIBRARY, "")):
        yield f"not checked: {needed(gemm)} with what cluster.setup loads; a run ends at once without it"


def _advice_on_gpus(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Source: NVIDIA, MIG User Guide: a CUDA program sees one instance, the first where a whole GPU is named to it."""
    cut = [str(gpu.index) for gpu in gpus if gpu.partitioned]
    if cut:
        yield (
            f"GPU {', '.join(cut)} {'is' if len(cut) == 1 else 'are'} cut into MIG instances: a process sees the first "
            "of them alone, and how much memory that has isn't known here"
        )
    for gpu in gpus:
        if gpu.fault:
            yield f"GPU {gpu.index}: {gpu.fault}; it is taken where no other is free"


def _advice_on_memory(spec: JobSpec, gpus: Sequence[Gpu], dtype: str, share: int, devices: int) -> Iterator[str]:
    """For `share` samples at once on a device."""
    memory = _memory(gpus)
    weights, sample = _least_memory(spec, devices), _outputs(spec) * ITEM[dtype]
    needed = weights + share * sample
    if not memory or needed <= MUCH * memory:
        return
    parts = f"weights and gradients take at least {_gib(weights)}, what is kept of {share} samples at once at "
    parts += f"least {_gib(share * sample)}, and {_card(gpus)} has {_gib(memory)}"
    if needed <= memory:
        yield f"{parts}; optimizer state and the rest come on top"
    elif fits := (memory - weights) // sample:
        yield f"{parts}: that runs out of memory, and no more than {fits} would fit; say batch= or accumulate="
    else:
        yield f"{parts}: that runs out of memory with a single sample; make the model smaller"


def _unit(spec: JobSpec, dtype: str) -> tuple[int, str]:
    """What sizes should be multiples of, and in which arithmetic; 0 where no tensor core is used."""
    if dtype != "float32":
        return 8, dtype
    return (4, "TF32") if spec.training.tf32 else (0, "")  # GPUs without it were refused


def _odd(layers: Sequence[Layer], unit: int) -> Iterator[str]:
    """Layers of other sizes, without what the data decides: the input channels of a first convolution, and a last layer
    with a tiny share of the weights, whose outputs are the classes."""
    small = layers and layers[-1].weights < SMALL * sum(layer.weights for layer in layers)
    for number, layer in enumerate(layers[:-1] if small else layers):
        given = number == 0 and layer.kind == "conv" and layer.inputs < unit
        odd = layer.outputs % unit or (layer.inputs % unit and not given)
        if odd and layer.groups == 1:  # depthwise convolutions use no tensor cores whatever their sizes
            yield f"{layer.name} {layer.inputs} -> {layer.outputs}"


def _rows(layers: Sequence[Layer]) -> int:
    """Rows of a sample in the last layer's matrix product: one, or each of its tokens."""
    return layers[-1].pixels if layers and layers[-1].kind == "linear" else 1


def _least_memory(spec: JobSpec, devices: int) -> int:
    training = spec.training
    if training.parallel == "fsdp":
        return _least_in_shards(spec, devices)
    without_masters = training.amp.level == "o2" and training.amp.master_weights is False
    return _weights(spec) * BYTES["o3" if without_masters else training.amp.level]


def _least_in_shards(spec: JobSpec, devices: int) -> int:
    """Each device's part; but before it is sharded, the model is whole on each, in float32."""
    return _weights(spec) * max(ITEM["float32"], BYTES[spec.training.amp.level] // devices)


def _weights(spec: JobSpec) -> int:
    return sum(layer.weights for layer in spec.recipe.layers(spec.training.train))


def _outputs(spec: JobSpec) -> int:
    """Numbers of a sample that are kept for the backward pass; a compiler may compute a norm again and not keep it."""
    layers = spec.recipe.layers(spec.training.train)
    if spec.training.compile or spec.training.xla:
        return sum(layer.outputs * layer.pixels for layer in layers if layer.copies)
    return sum(layer.kept for layer in layers)


def _memory(gpus: Sequence[Gpu]) -> int:
    """Memory of the smallest GPU, in bytes; 0 where unknown."""
    return min((gpu.memory_mib for gpu in gpus if gpu.memory_mib), default=0) * 2**20


def _card(gpus: Sequence[Gpu]) -> str:
    smallest = min((gpu for gpu in gpus if gpu.memory_mib), key=lambda gpu: gpu.memory_mib)
    return smallest.name


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
