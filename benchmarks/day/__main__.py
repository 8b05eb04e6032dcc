"""Run the parts in order, and write one folder that can be sent back."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.day import machine, processes
from benchmarks.day.checks import Check, Day, LeftOut, Part, write
from benchmarks.day.parts import PROCESSES, THOROUGH, parts


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 where a check failed or a part broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu day", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="rehearse with sizes that any machine can do")
    parser.add_argument(
        "--thorough", action="store_true", help="all rows of benchmarks.gpu too, in three processes, an hour more"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="LETTER", help="of " + _letters())
    parser.add_argument("--out", type=Path, default=Path("gpu-day"), help="the folder to write")
    options = parser.parse_args(words)
    chosen = [part for part in parts() if not options.only or part.letter in options.only]
    if len(chosen) < len(options.only) or not chosen:
        parser.error(f"--only {' '.join(options.only)}: the parts are {_letters()}")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu needs --tiny: full sizes take hours on a CPU")
    if options.device == "cuda" and not _has_gpu():
        parser.error("torch sees no CUDA GPU here; --device cpu --tiny rehearses without one")
    if options.out.exists():
        parser.error(f"--out {options.out} is there already; name another folder")
    options.out.mkdir(parents=True)
    minutes = sum(part.seconds for part in chosen) / 60 + PROCESSES * THOROUGH / 60 * options.thorough
    print(f"{len(chosen)} parts, about {minutes:.0f} minutes; into {options.out}", flush=True)
    documents: list[dict[str, Any]] = []

    def save() -> None:  # after each check: a day may be cut short
        write(options.out / "day.json", {"schema": 1, "rehearsal": options.tiny, "parts": documents})

    try:
        with processes.home() as home:
            day = Day(
                device=options.device,
                tiny=options.tiny,
                thorough=options.thorough,
                folder=options.out.resolve(),
                home=home,
            )
            for part in chosen:
                documents.append({"part": part.letter, "about": part.about, "ended": False, "checks": []})
                began = time.monotonic()
                save()
                for checks, why in run(part, day):
                    documents[-1]["checks"] = [dataclasses.asdict(check) for check in checks]
                    documents[-1]["left_out"] = why
                    save()
                documents[-1] |= {"ended": True, "seconds": time.monotonic() - began}
                save()
    except KeyboardInterrupt:
        rest = " ".join(part.letter for part in chosen[len(documents) - 1 :])
        print(f"stopped; what ended is in {options.out}, and --only {rest} does the rest", flush=True)
        return 130
    failed = any(check["passed"] is False for document in documents for check in document["checks"])
    print(f"written to {options.out}; " + ("A CHECK FAILED" if failed else "no check failed"))
    return int(failed)


def run(part: Part, day: Day) -> Iterator[tuple[list[Check], str]]:
    """The part's checks so far, after each, printed as they come, and why the rest of it was left out. One that breaks
    fails, and costs no other part."""
    print(f"({part.letter}) {part.about}", flush=True)
    checks: list[Check] = []
    try:
        for check in part.run(day):
            check.gpus = machine.state_now()
            checks.append(check)
            outcome = {True: "passed", False: "FAILED", None: "left out"}[check.passed]
            print(
                f"    {outcome:9} {check.name}" + ("" if check.passed else f"  {json.dumps(check.facts)}"), flush=True
            )
            yield checks, ""
    except LeftOut as reason:
        print(f"    left out: {reason}", flush=True)
        yield checks, str(reason)
    except Exception as error:  # a GPU is had rarely: one part that breaks must not cost all others
        traceback.print_exc(file=sys.stderr)
        checks.append(Check(name="the part ran to its end", passed=False, facts={"why": f"{type(error).__name__}"}))
        yield checks, ""


def _letters() -> str:
    return ", ".join(f"{part.letter} ({part.about})" for part in parts())


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
