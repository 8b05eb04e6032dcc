"""One attempt at a user's script: its run, the verdict over all ranks, its result and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

from amp_launcher import result, run_folder
from amp_launcher.around import block as blocks
from amp_launcher.around import earlier_attempts, leaving, rank_reports
from amp_launcher.around.child_processes import RANKS
from amp_launcher.around.earlier_attempts import Earlier
from amp_launcher.around.early import EarlyVerdict
from amp_launcher.around.rank_reports import Reports
from amp_launcher.around.script_execution import execute
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.stop_signal import StopSignal
from amp_launcher.around.wrapper import Started, Wrapper
from amp_launcher.job import logged as script_log
from amp_launcher.leave import FAILED, end_now, flush_files
from amp_launcher.loop import proof, result_fields
from amp_launcher.precision import verdict
from amp_launcher.precision.findings import CONTRADICTED, UNKNOWN
from amp_launcher.precision.listeners import heard_by
from amp_launcher.precision.operators import ignoring
from amp_launcher.result import Result, Status
from amp_launcher.run_folder import RunFolder, write_json
from amp_launcher.watchdog import Watchdog
from amp_launcher.world.world import rank_and_size

_UNKNOWN: dict[str, Any] = {"batch": None, "accumulate": None, "deterministic": None}
"""Settings that only the script knows."""


class ScriptAttempt:
    """One attempt at a script, on this rank."""

    def __init__(self, started: Started, wrapper: Wrapper, began: float) -> None:
        """`began` is the process's start on the monotonic clock."""
        chosen = started.chosen
        self._started = started
        self._settings, self._run = chosen.settings, chosen.run
        self._wrapper = wrapper
        self._began = began
        self._rank, self._size = rank_and_size(chosen.settings.framework)
        self._folder = self._make_folder() if self._rank == 0 else None
        self._before = Earlier()
        if self._folder and not blocks.of(chosen):  # each block of a comparison begins afresh
            self._before = earlier_attempts.read(self._folder)
        self._report = rank_reports.path_of(self._run, self._rank) if self._run and self._rank else None
        if self._report:  # of an earlier start
            self._report.unlink(missing_ok=True)
        detector = wrapper.detector(chosen.settings.amp.level)
        self._meter = StepMeter(self._folder, world_size=self._size, detector=detector, block=blocks.of(chosen))
        self._meter.memory = wrapper.device.peak_memory
        self._meter.when_over = lambda: blocks.end_within(blocks.GRACE, self._give_up)
        script_log.receiver.receive = self._meter.log if self._rank == 0 else lambda logged: None
        wrapper.tell_early(EarlyVerdict(chosen.settings, self._rank, resumed=self._meter.resumed, run=self._run))
        self._request = StopSignal(self._run, chosen.plan, self._rank)
        self._request.conclude = lambda code: self._end(code, stopped=not self._fails_early, killed=True)
        self._once = threading.Lock()
        self._program = ""
        """What the script executes in its place."""

    def run(self) -> int:
        """Run the script; returns the exit code of its process."""
        started = self._started
        watchdog = Watchdog(lambda: self._meter.progress, self._settings, self._run, self._rank, self._hangs)
        with (
            heard_by(self._wrapper.notice),
            self._wrapper.around(self._meter),
            self._request,
            leaving.watched(self._leave, self._once.release),
            watchdog.watching() if self._settings.amp.claims else contextlib.nullcontext(),
        ):
            where = (started.workdir, started.inputs, started.named)
            code, failure, trace = execute(started.file, started.arguments, *where, instead=self._wrapper.instead)
        if self._meter.over:  # an error of a script that was interrupted by the end of its block is no failure
            code = self._end(0)
            blocks.end_within(blocks.GRACE, lambda: code)
            return code
        stopped = self._request.stopped(code, trace) and not self._fails_early
        return self._end(code, None if stopped else failure, trace, stopped=stopped)

    def _leave(self, code: int, program: str) -> int:
        """Conclude before the script ends this process, or executes a program in its place."""
        if self._once.locked():  # the end of a block ends it
            return code
        self._program = program
        self._wrapper.conclude()
        return self._end(code, f"the script ended with exit code {code}" if code else None)

    @property
    def _fails_early(self) -> bool:
        """Whether a contradiction ended the script, or asked it to stop."""
        return bool(self._wrapper.early.reason) or self._wrapper.early.stops

    def _make_folder(self) -> RunFolder | None:
        if self._run is None:
            return None
        self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
        attempt = int(os.environ.get("LAUNCHER_ATTEMPT") or run_folder.next_attempt(self._run, 0))
        (self._run / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
        return RunFolder(path=self._run, attempt=attempt)

    def _hangs(self, reason: str) -> None:
        """End the process from a thread beside the script."""
        code = self._end(FAILED, reason, killed=True)
        flush_files()
        end_now(code)

    def _give_up(self) -> int:
        print(f"script: it did not end within {blocks.GRACE:g} s of the end of its block; ended", file=sys.stderr)
        return self._end(0)

    def _end(
        self, code: int, failure: str | None = None, trace: str = "", *, stopped: bool = False, killed: bool = False
    ) -> int:
        """Conclude a script that ended with this code, and return its process's. `stopped`: because it was asked to;
        `killed`: a signal is about to end it, or it hangs."""
        self._once.acquire()  # and not released: a second caller waits until the process ends
        try:
            return self._conclude(code, failure, trace, stopped=stopped, killed=killed)
        except BaseException:
            self._once.release()  # the error ends the script, which is concluded then
            raise

    def _conclude(self, code: int, failure: str | None, trace: str, *, stopped: bool, killed: bool) -> int:
        waits = not killed and (not code or stopped)
        # Python itself waits for those that the script started, however long they take.
        own_ranks = self._wrapper.reports_of_ranks(threading.TIMEOUT_MAX if waits else rank_reports.HURRY)
        if killed:
            self._meter.close()
            sys.stdout.flush()
        else:
            flush_files()
        self._meter.finish(self._wrapper.skipped_unseen())
        seconds = time.monotonic() - self._began
        if self._wrapper.early.reason and code:  # the script, or its library, may have raised another exception
            failure, trace = self._wrapper.early.reason, ""
        several = self._size > 1
        first = run_folder.first_failure(self._run, self._rank, failure, trace=trace) if failure and several else None
        if self._rank:
            self._leave_report(failure)
            return code
        others = own_ranks or rank_reports.Reports(trained_nothing=not several)
        if several and self._run:
            patience = rank_reports.PATIENCE if waits else rank_reports.HURRY if killed else 0.0
            others = rank_reports.collect(self._run, self._size, patience)
        failed, observed = self._judge(failure, first, stopped, others)
        if not self._settings.amp.claims:
            observed = {}
        elif (
            killed
            and code > 128
            and observed["verdict"] == UNKNOWN
            and not (self._wrapper.reports() or others.of_steps)
        ):
            observed["why"] = f"{signal.Signals(code - 128).name} ended the script before its steps were judged"
        problem = failed if failed or stopped else self._proof_problem(observed)
        if not problem and not stopped:
            self._meter.end_block()
        status: Status = "failed" if problem else "stopped" if stopped else "done"
        self._leave_result(status, problem, observed, seconds, max(self._size, others.world_size))
        if not failed:
            self._print_profile()
            if observed.get("verdict") or self._meter.counted:
                print(self._meter.sentence())
        if self._settings.amp.claims:
            said = observed["verdict"] or "nothing to prove"
            print(f"amp={self._settings.amp.level} {said}: {observed['why']}")
        sys.stdout.flush()
        if problem and (problem != failure or self._wrapper.early.reason):
            reason = f": {observed['why']}"  # printed already
            print(f"script: {problem.replace(reason, '')}", file=sys.stderr)
        return code or (FAILED if problem else 0)

    def _leave_report(self, failure: str | None) -> None:
        """Leave the report of another rank than 0 in the run folder."""
        early_verdict = self._wrapper.early
        message = f"on rank {self._rank}, {failure}" if failure else None
        if self._report:
            self._report.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            record = {
                "reports": self._wrapper.reports(),
                "failure": message,
                "observed": early_verdict.observed,
                "trained_nothing": self._wrapper.trained_nothing(),
            }
            write_json(self._report, record)
        if early_verdict.reason:
            rank_reports.await_first(self._report, f"on rank {self._rank}, {failure}")

    def _judge(
        self, failure: str | None, first: str | None, stopped: bool, others: Reports
    ) -> tuple[str | None, dict[str, Any]]:
        """Why the job failed, None if it did not, and result.json's "observed" by the reports of all ranks.

        `first` is the failure of the rank that failed first, `others` what other processes have reported.
        """
        observed, elsewhere = self._wrapper.early.observed or others.observed, others.failure
        if stopped and elsewhere:
            print(f"script: {elsewhere}, after it was asked to stop", file=sys.stderr)
            elsewhere = None
        # A failure here that follows from another rank's end is not why the job failed. Without the launcher's number
        # of the attempt, the first failed rank is unknown.
        failed = (first if os.environ.get("LAUNCHER_ATTEMPT") else None) or elsewhere or failure
        if failed:
            asked = " when it was asked to stop" if self._request.asked else ""
            return failed, observed or {"verdict": "unknown", "why": f"the script failed{asked}"}
        proof = self._settings.proof
        seen = (*self._wrapper.reports(), *others.of_steps)
        own = [{**report, "step": report["step"] + self._meter.before} for report in seen]
        observed = self._before.observed(
            own, lambda reports: verdict.observed(ignoring(reports, proof.ignore), share=proof.share)
        )
        alone = self._size == others.world_size == 1
        if alone and observed["verdict"] == UNKNOWN and any(report["world_size"] > 1 for report in own):
            observed["why"] += f"; {RANKS}"
        fails = observed["verdict"] == CONTRADICTED and not stopped
        if self._folder and not fails and not blocks.of(self._started.chosen):
            earlier_attempts.leave(self._folder, own, self._meter.counted)
        if not self._before.reports and not own and not self._meter.steps:
            whole = not stopped and not self._program and (self._folder is None or self._folder.attempt == 1)
            if whole and others.trained_nothing and self._wrapper.trained_nothing():
                return None, {**observed, "verdict": None, "why": "it took no optimizer step"}
            observed["why"] += self._wrapper.unseen()
        if self._program:
            observed = leaving.without_rest(observed, self._program)
        skipped = self._meter.only_skipped
        return None, verdict.without_updates(observed, skipped) if skipped else observed

    def _proof_problem(self, observed: dict[str, Any]) -> str | None:
        """Why a script that has ended well fails; None if it does not."""
        if not observed:
            return None
        unmeasured = None if observed["verdict"] == CONTRADICTED else self._meter.block_problem
        level, required = self._settings.amp.level, self._settings.proof_required
        return unmeasured or proof.problem(level, required, observed["verdict"], observed["why"])

    def _print_profile(self) -> None:
        """Report on a requested profile: the number of the script's steps was not known beforehand."""
        profiling, requested = self._wrapper.profiling, self._settings.profile
        if profiling and profiling.record and profiling.note:
            print(profiling.note)
        if profiling and requested.tool == "framework" and not profiling.record:
            print(
                f"script: profile=framework recorded nothing: {self._meter.steps or 'no'} optimizer steps were seen, "
                f"and profile.start={requested.start}",
                file=sys.stderr,
            )

    def _leave_result(
        self, status: Status, problem: str | None, observed: dict[str, Any], seconds: float, world_size: int
    ) -> None:
        if self._folder is None:
            return
        self._folder.check_ours()
        wrapper, settings = self._wrapper, self._settings
        record = Result(
            run=os.environ.get("LAUNCHER_RUN_ID") or self._folder.path.resolve().name,
            status=status,
            reason=problem,
            attempts=self._folder.attempt,
            framework=settings.framework,
            recipe="script",
            mechanism=wrapper.mechanism(),
            requested={**result_fields.requested(settings), **_UNKNOWN},
            effective={**result_fields.effective(settings, wrapper.mode, False), **_UNKNOWN},
            observed=observed,
            peak_memory_bytes=self._meter.memory(),
            epochs=None,
            **self._meter.result(self._before.counted),
            wall_seconds=seconds,
            world_size=world_size,
            determinism="best_effort",
            resumed_from=None,
            profile=wrapper.profile(),
            versions=wrapper.device.versions(),
            digests=result_fields.digests(self._started.chosen.plan, None),
            hardware=wrapper.device.hardware(),
        )
        result.write(self._folder.result, record)
