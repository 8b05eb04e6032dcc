"""What a plan says of `amp.gemm`: the layers that it converts and leaves out, and what isn't known before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.spec import JobSpec
from launcher.plan.requirements import image_packages
from launcher.probe.facts import Facts
from recipes import settings
from recipes.precision.gemm import FORMATS, HALF, library_problem, needed
from recipes.precision.gemm_layers import line


def advice(spec: JobSpec, facts: Facts, device: str, devices: int) -> Iterator[str]:
    """Sentences for people; `devices` is the number of them on all nodes."""
    gemm = spec.training.amp.gemm
    if gemm == HALF:
        return
    if chosen := settings.gemm_layers(spec.training, spec.recipe, devices):
        yield line(gemm, *chosen)
    if device == "cpu":
        yield f"amp.gemm={gemm} on a CPU shows that it is applied; a step takes about five times one in bfloat16"
    if spec.launch.container.kind != "none":
        packages, why = image_packages(spec, facts)
        if packages is None:
            why = why or "it was not looked into"
            yield f"not checked: {needed(gemm)} in the image ({why}); a run ends at once without it"
    elif spec.launch.cluster.setup and library_problem(gemm, facts.packages.get(FORMATS[gemm].mechanism, "")):
        yield f"not checked: {needed(gemm)} with what cluster.setup loads; a run ends at once without it"
