"""What every recipe in torch shares: how it starts, how it ends, and what it leaves behind.

A recipe builds its model and says what one step is; `Run.fit` does the rest.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from recipes import arguments, levels, result, settings
from recipes.arguments import Arguments
from recipes.result import Result
from recipes.run_folder import Superseded
from recipes.torch_ import devices, outcome
from recipes.torch_.devices import PlacementError, World
from recipes.torch_.precision import Precision
from recipes.torch_.recorder import peak_memory
from recipes.torch_.state import Trained
from recipes.torch_.training import Evaluate, Step, Training
from recipes.typed import SettingsError

DONE, FAILED, REFUSED, STOPPED, INTERRUPTED = 0, 1, 2, 85, 130


def start(recipe: str, train: Callable[[Run], None]) -> NoReturn:
    """Run a recipe's `train` for the words of the command line, as all that this process is for."""
    code = main(recipe, train, sys.argv[1:])
    if "RANK" in os.environ:
        # Gloo's threads may still hold Python objects, and abort the process if they release one while the interpreter
        # is ending: every fifth run of two ranks ended so, after it had done everything else. So don't end it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(recipe: str, train: Callable[[Run], None], words: Sequence[str]) -> int:
    """The same, for these words; returns the process's exit code.

    0 done; 1 failed, also where the proof did; 2 the settings are wrong; 85 stopped on request with the state saved.
    """
    if "--help" in words or "-h" in words:
        print(arguments.help_text(recipe, f"recipes.torch_.{recipe}"))
        return DONE
    began = time.monotonic()
    run = None
    try:
        chosen = arguments.parse(words, recipe, "torch")
        world = devices.join(chosen.settings.device, arguments.planned_ranks(chosen.plan), os.environ)
        run = Run(chosen, world, began)
        train(run)
    except SettingsError as error:
        print(f"{recipe}: {error}", file=sys.stderr)
        return REFUSED
    except PlacementError as error:
        if os.environ.get("RANK", "0") == "0":  # every rank has the same table
            print(f"{recipe}: {error}", file=sys.stderr)
        return FAILED
    except Superseded as error:
        print(f"{recipe}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        _leave_failure(run, "interrupted from the keyboard")
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        _leave_failure(run, f"{type(error).__name__}: {error}")
        return FAILED
    world.leave()
    return run.exit_code


def _leave_failure(run: Run | None, reason: str) -> None:
    if run is not None:
        run.leave_failure(reason)


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


class Run:
    """One execution of a recipe by this process: what was asked, its precision, and its place among the ranks."""

    def __init__(self, chosen: Arguments, world: World, began: float) -> None:
        self.settings = chosen.settings
        self.world = world
        settings.check(self.settings, world.size)
        self.precision = Precision.of(
            self.settings.amp,
            self.settings.loss_scale,
            world.device,
            tf32=self.settings.tf32,
            compile=self.settings.compile,
        )
        dtype = str(self.precision.dtype).removeprefix("torch.")
        row = levels.mechanism("torch", self.settings.amp.level, dtype, self.settings.xla, world.device.type)
        if row.hole:
            raise SettingsError(row.hole, "xla")
        asked = self.settings.deterministic
        self.deterministic = world.device.type == "cpu" if asked is None else asked
        devices.make_repeatable(self.deterministic)
        torch.manual_seed(self.settings.seed % 2**63)
        self.exit_code = DONE
        self._chosen = chosen
        self._began = began
        self._training: Training | None = None
        self._data_digest: str | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The cast model, spread over the ranks and compiled as asked. From here on each rank draws its own dropout."""
        wrapped = self.world.wrap(model)
        if self.world.size > 1:
            devices.seed_rank(self.settings.seed, self.world.rank)
        return torch.compile(wrapped) if self.settings.compile else wrapped  # type: ignore[return-value]

    def fit(
        self,
        *,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        step: Step,
        evaluate: Evaluate | None,
        samples: int,
        data: str,
        data_digest: str,
    ) -> None:
        """Train to the end, or until asked to stop, and write the result; sets `exit_code`.

        `model` is the cast model without its wrappers, `evaluate` None where nothing is held out, `data` a line for
        people. In a run folder that holds a checkpoint the run goes on from there.
        """
        self._data_digest = data_digest
        training = self._training = Training(
            settings=self.settings,
            world=self.world,
            trained=Trained(model=model, optimizers=optimizers, precision=self.precision),
            folder=self._chosen.run,
            samples=samples,
            exact=self.deterministic,
            seconds=lambda: time.monotonic() - self._began,
            say=self.say,
        )
        self._introduce(training, data)
        reached = training.run(step, evaluate)
        observed = training.observed()
        memory = max(self.world.gather(peak_memory(self.world.device)))
        if not reached:
            self.exit_code = STOPPED
            self._leave_result("stopped", None, observed, memory, self.precision.scale)
            return
        problem = self._proof_problem(observed)
        self.exit_code = FAILED if problem else DONE
        self._leave_result("failed" if problem else "done", problem, observed, memory, self.precision.scale)
        self._conclude(training, observed, memory)
        if problem and self.world.rank == 0:
            print(f"{self.settings.recipe}: {problem}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A line for people, from rank 0."""
        if self.world.rank == 0:
            print(text, flush=True)

    def leave_failure(self, reason: str) -> None:
        """Write a result that says why the run broke off, if it had begun to train. Asks nothing of other ranks."""
        if self._training is not None:
            observed = {"verdict": "unknown", "why": "the run broke off"}
            memory = peak_memory(self.world.device)
            with contextlib.suppress(Superseded):
                self._leave_result("failed", reason, observed, memory, self._training.journal.summary.loss_scale)

    def _leave_result(
        self,
        status: Literal["done", "failed", "stopped"],
        reason: str | None,
        observed: dict[str, Any],
        memory: int,
        scale: float | None,
    ) -> None:
        training = self._training
        if training is None or training.folder is None or self.world.rank:
            return
        training.event("end", status=status)
        summary = training.journal.summary
        found = Result(
            run=os.environ.get("LAUNCHER_RUN_ID") or training.folder.path.resolve().name,
            status=status,
            reason=reason,
            attempts=training.attempt,
            framework="torch",
            recipe=self.settings.recipe,
            mechanism=self.precision.mechanism,
            requested=outcome.requested(self.settings),
            effective=outcome.effective(self.settings, self.precision, self.deterministic),
            observed=observed,
            throughput=summary.throughput(),
            peak_memory_bytes=memory,
            loss={"first": summary.first_loss, "last": summary.last_loss},
            eval=summary.evaluation,
            loss_scale={"final": scale, "skipped_steps": summary.skipped},
            updates={"attempted": summary.steps, "applied": summary.steps - summary.skipped},
            epochs=self.settings.epochs,
            steps=summary.steps,
            wall_seconds=training.seconds(),
            world_size=self.world.size,
            determinism="exact" if training.exact else "best_effort",
            resumed_from=training.first if training.resumed_from else None,
            versions=outcome.versions(),
            digests=outcome.digests(self._chosen.plan, self._data_digest),
            hardware=outcome.hardware(self.world.device),
        )
        training.check_ours()
        result.write(training.folder.result, found)

    def _introduce(self, training: Training, data: str) -> None:
        settings = self.settings
        if self.world.size > 1:
            self.say(devices.table(self.world.places))
        repeats = "deterministic" if self.deterministic else "not deterministic"
        device = outcome.device_line(self.world.device)
        self.say(f"{settings.recipe} on {data}")
        self.say(f"torch {torch.__version__} on {device}, seed {settings.seed}, {repeats}")
        for line in outcome.mode_lines(settings, self.precision):
            self.say(line)
        parts = [f"batch {settings.batch}"]
        if self.world.size > 1:
            parts.append(f"over {self.world.size} ranks")
        if settings.accumulate > 1:
            parts.append(f"in {settings.accumulate} micro-batches")
        self.say(f"{' '.join(parts)}, {_steps(training.total)}")

    def _conclude(self, training: Training, observed: dict[str, Any], memory: int) -> None:
        summary = training.journal.summary
        facts = [f"held-out {name} {value:.4f}" for name, value in summary.evaluation.items()]
        mean = summary.throughput()["mean"]
        if mean is not None:
            facts.append(f"{mean:,.0f} samples/s")
        facts.append(f"{memory / 2**20:,.0f} MiB at most")
        if summary.skipped:
            facts.append(f"{_steps(summary.skipped)} skipped on overflow")
        self.say(f"{_steps(summary.steps)} in {training.seconds():.1f} s: {', '.join(facts)}")
        self.say(f"amp={self.settings.amp.level} {observed['verdict']}: {observed['why']}")
        if training.folder:
            self.say(f"result in {training.folder.result}")

    def _proof_problem(self, observed: dict[str, Any]) -> str | None:
        """Why the proof fails the run, in one sentence."""
        level = self.settings.amp.level
        if observed["verdict"] == "contradicted":
            return f"what ran was not amp={level}: {observed['why']}"
        if observed["verdict"] == "unknown" and self.settings.require_proof:
            return f"nothing proves that amp={level} ran: {observed['why']} (require_proof=false lets that pass)"
        return None
