"""The examination of a place, from the way to its host to the proof of a job of a few steps there."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from amp_launcher.typed import SettingsError, build
from launcher import admit, units
from launcher.admit import Refused
from launcher.config.spec import JobSpec
from launcher.doctor.rules import Finding, advice, of_host, of_slurm, ok, problem
from launcher.errors import LauncherError
from launcher.executors import backends, stopping
from launcher.executors.remove import remove
from launcher.plan.resolve import refusals
from launcher.probe import health
from launcher.runs import address as addresses
from launcher.runs import log_tail, run_roots
from launcher.runs.address import Address
from launcher.runs.schema import ResultRecord
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ssh.probe_client import probe
from launcher.ui import hints, summary, tables

QUEUED_FOR = 60.0
"""Seconds that the job may wait for its turn."""
RUNS_FOR = 300.0
LINES = 8
"""Of the log of a job that failed."""


def examine(spec: JobSpec) -> Iterator[Finding]:
    """Everything from the way to the host to the proof of a job there, until nothing more can be seen."""
    from launcher.executors.base import submit

    address = addresses.of(spec.launch.cluster)
    try:
        if address is not None:
            yield _reached(address)
        facts = probe([spec])
        host, now = _host(spec, address), time.time()
    except LauncherError as error:
        yield problem("reach" if address else "host", str(error))
        return
    blocked = False
    of_place = of_host(host, facts, spec, now=now, remote=address is not None)
    for finding in (*of_place, *of_slurm(facts, spec)):
        blocked = blocked or finding.level == "problem"
        yield finding
    plan, refused = refusals(spec, facts)
    yield from (problem("request", str(error)) for error in refused)
    if plan is None or refused or blocked:
        yield advice("job", "not started because of the problems above", "fix them and run doctor again")
        return
    for line in plan.advice:
        yield advice("plan", line, "")
    try:
        (folder,) = submit([plan], [spec], facts)
    except LauncherError as error:
        yield problem("job", str(error))
        return
    yield from _job(Run(str(folder.parent), folder.name))


def _reached(address: Address) -> Finding:
    from launcher.ssh.host import connect, hello

    began = time.monotonic()
    host = connect(address)
    answer = host.ask("hello", hello)
    opened = time.monotonic()
    host.ask("hello", hello)
    remote, route = f"{answer['host']}, Python {answer['python']}", f"{address.destination} by {address.transport}"
    trip = time.monotonic() - opened
    return ok("reach", f"{route}: {remote}; connected in {opened - began:.1f} s, {1000 * trip:.0f} ms round trip")


def _host(spec: JobSpec, address: Address | None) -> health.Host:
    if address is None:
        return health.read(spec.launch.run_root)
    from launcher.ssh.host import connect

    return connect(address).ask("examine", _examined, run_root=spec.launch.run_root)


def _examined(answer: Any) -> health.Host:
    """Raises `Refused`."""
    try:
        return build(health.Host, admit.group(admit.cleaned(answer), "its state"), prefix="host.")
    except SettingsError as error:
        raise Refused(str(error)) from None


def _job(run: Run) -> Iterator[Finding]:
    """What became of the job. One that went well leaves nothing."""
    print(f"a job of a few steps runs ({run.id}); Ctrl-C ends it", file=sys.stderr)
    try:
        seen, waited = _awaited(run)
    except BaseException:
        stopping.cancel([run], now=True)
        raise
    state = seen.state
    if not state.finished:
        stopping.cancel([run], now=True)
        text = f"{state.name} for {waited:.0f} s{': ' if state.reason else ''}{state.reason}; it was cancelled"
        if state.name == "queued":
            yield advice("job", text, "the queue is long, or nothing free fits; ask again later, or ask for less")
        else:
            yield problem("job", text, f"`logs {run.id}` shows what it did")
        return
    result = summary.result_of(run.folder, state)
    if state.name == "done":
        yield ok("job", f"done in {units.duration(waited)}: {_figures(result)}")
        yield _proof(result)
        _remove(run)
        return
    _, last = log_tail.read(run.folder, state.attempt)
    tail = "".join(f"\n{'':20}{tables.clean(line)}" for line in _words(last)[-LINES:])
    remedy = hints.known("\n".join([state.reason, *last])) or f"`logs {run.id}` shows all of it"
    yield problem("job", f"{state.name}: {state.reason}{tail}", remedy)


def _words(log: Sequence[str]) -> list[str]:
    """The lines before the table of ranks, which only maps ranks to hosts."""
    printed = [line for line in log if line.strip()]
    table = next((number for number, line in enumerate(printed) if line.split()[:3] == ["rank", "host", "device"]), 0)
    return printed[:table] if table else printed


def _awaited(run: Run) -> tuple[Seen, float]:
    """The run once it has ended, or has waited or run for too long, and after how many seconds."""
    began = time.monotonic()
    while True:
        (seen,) = backends.states_of([run])
        waited = time.monotonic() - began
        limit = QUEUED_FOR if seen.state.name == "queued" else QUEUED_FOR + RUNS_FOR
        if seen.state.finished or waited > limit:
            return seen, waited
        time.sleep(0.5)


def _figures(result: ResultRecord) -> str:
    rate = f"{rate}, " if (rate := summary.throughput_of(result)) else ""
    return f"{rate}{units.size(result.peak_memory_bytes)} at most, on {summary.device_of(result) or '-'}"


def _proof(result: ResultRecord) -> Finding:
    observed = result.observed
    verdict, why = observed.verdict or "unknown", observed.why or "nothing was observed"
    if verdict == "proved":
        return ok("proof", f"proved: {why}")
    return problem("proof", f"{verdict}: {why}", "the mode was not proved; docs/precision.md lists what that needs")


def _remove(run: Run) -> None:
    if run_roots.is_remote(run.root):
        from launcher.ssh import actions

        actions.remove([run], False, now=True)
    remove([run], False, now=True)
