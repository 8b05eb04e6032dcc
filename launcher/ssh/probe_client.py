"""Facts of the host that jobs go to: this machine, or one over SSH."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from amp_launcher.recipe import NAMES
from amp_launcher.typed import SettingsError, build, plain
from launcher import admit
from launcher.admit import Refused
from launcher.config.spec import JobSpec
from launcher.probe.facts import Facts
from launcher.probe.host import look
from launcher.probe.inputs import with_inputs
from launcher.probe.questions import questions
from launcher.runs import address as addresses


def probe(specs: Sequence[JobSpec]) -> Facts:
    """Facts of the host of the jobs, with the code and secrets that they take from here. Raises `LauncherError`."""
    address = addresses.of(specs[0].launch.cluster)
    if address is None:
        facts = look(questions(specs))
    else:
        from launcher.ssh.host import connect

        facts = connect(address).ask("probe", _admitted, asked=plain(questions(specs)))
    return with_inputs(facts, specs)


def probe_each(specs: Sequence[JobSpec]) -> list[Facts]:
    """Facts for each of the jobs, which go to one host and run one snapshot of the code, but may differ in Python,
    container and image."""
    common = probe(specs)
    by_runtime = {_runtime(specs[0]): common}
    for spec in specs:
        if _runtime(spec) not in by_runtime:
            own = probe([other for other in specs if _runtime(other) == _runtime(spec)])
            by_runtime[_runtime(spec)] = dataclasses.replace(own, code=common.code)
    return [by_runtime[_runtime(spec)] for spec in specs]


def looked_at(spec: JobSpec) -> tuple[Any, ...]:
    """What facts of a job depend on: jobs in which it is equal have the same facts."""
    launch, train = spec.launch, spec.training.train
    script = (launch.script, tuple(launch.include), train.bare, train.command) if launch.script else None
    own_recipe = spec.recipe.name not in NAMES
    return addresses.of(launch.cluster), questions([spec]), tuple(launch.secrets.items()), script, own_recipe


def _runtime(spec: JobSpec) -> tuple[Any, ...]:
    launch, container = spec.launch, spec.launch.container
    return launch.python, launch.image, container.kind, container.cache, container.pull


def _admitted(answer: Any) -> Facts:
    """Another host's facts. Raises `Refused`."""
    try:
        return build(Facts, admit.group(admit.cleaned(answer), "facts"), prefix="facts.")
    except (SettingsError, TypeError) as error:  # the latter where facts are missing
        raise Refused(str(error)) from None
