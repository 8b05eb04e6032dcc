"""Facts of the host that jobs go to: this machine, or one over SSH."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from amp_launcher.recipe import NAMES
from amp_launcher.typed import SettingsError, build, plain
from launcher import admit, waiting
from launcher.admit import Refused
from launcher.code.uv_project import WORD
from launcher.config.spec import JobSpec
from launcher.errors import Unavailable
from launcher.probe.facts import Facts
from launcher.probe.host import facts_of
from launcher.probe.inputs import project, with_inputs
from launcher.probe.questions import Questions, questions
from launcher.runs import address as addresses
from launcher.runs.address import Address
from launcher.ssh import environment_client


def probe(specs: Sequence[JobSpec], *, make: bool = True) -> Facts:
    """Facts of the host of the jobs, with the code and secrets that they take from here. With `python=uv` its
    environment is made first, unless it is there, or `make` is false: then the lock file says what will be in it.
    Raises `LauncherError`."""
    address = addresses.of(specs[0].launch.cluster)
    of_uv = project(specs) if specs[0].launch.python == WORD else None
    asked = questions(specs, of_uv.digest if of_uv else "")
    facts = _look(asked, address)
    if of_uv and make and not (facts.uv_is_made or facts.python_problem or facts.run_root_problem):
        environment_client.make(of_uv, facts, address, shared=asked.shared)
        facts = _look(asked, address)
        if not facts.uv_is_made:
            raise Unavailable(f"python=uv: the environment {facts.python} was made on {facts.host}, and is not there")
    return with_inputs(facts, specs)


def _look(asked: Questions, address: Address | None) -> Facts:
    if address is None:
        return facts_of(asked)
    from launcher.ssh.host import connect

    with waiting.shown(lambda: f"looking at {address.destination}"):
        return connect(address).ask("probe", _admitted, asked=plain(asked))


def probe_each(specs: Sequence[JobSpec], *, make: bool = True) -> list[Facts]:
    """Facts for each of the jobs, which go to one host and run one snapshot of the code, but may differ in Python,
    container and image. `make` is as for `probe`."""
    common = probe(specs, make=make)
    by_runtime = {runtime(specs[0]): common}
    for spec in specs:
        if runtime(spec) not in by_runtime:
            own = probe([other for other in specs if runtime(other) == runtime(spec)], make=make)
            by_runtime[runtime(spec)] = dataclasses.replace(own, code=common.code)
    return [by_runtime[runtime(spec)] for spec in specs]


def looked_at(spec: JobSpec) -> tuple[Any, ...]:
    """What facts of a job depend on: jobs in which it is equal have the same facts."""
    launch, train = spec.launch, spec.training.train
    script = (launch.script, tuple(launch.include), train.bare, train.command) if launch.script else None
    own_recipe = spec.recipe.name not in NAMES
    return addresses.of(launch.cluster), questions([spec]), tuple(launch.secrets.items()), script, own_recipe


def runtime(spec: JobSpec) -> tuple[Any, ...]:
    """What facts of a host differ in between jobs that run one snapshot of the code."""
    launch, container = spec.launch, spec.launch.container
    return launch.python, launch.image, container.kind, container.cache, container.pull


def _admitted(answer: Any) -> Facts:
    """Another host's facts. Raises `Refused`."""
    try:
        return build(Facts, admit.group(admit.cleaned(answer), "facts"), prefix="facts.")
    except SettingsError as error:
        raise Refused(str(error)) from None
