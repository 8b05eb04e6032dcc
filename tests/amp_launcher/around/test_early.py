"""Reports of observed steps warn a script while it runs, or end it."""

from __future__ import annotations

from typing import Any

import pytest

from amp_launcher.around.early import MOST_WARNINGS, EarlyVerdict, NotProved
from amp_launcher.around.script import ScriptSettings
from amp_launcher.precision.levels import Amp
from amp_launcher.settings import Proof, Settings
from tests.amp_launcher.precision.reports import both, report

GOOD, WRONG = report(), report(calls=both("float32"), step=9)
UNKNOWN = report(problems=["it broke"], step=9)
WARNING, END = "script: warning: amp=o1 ", "the run fails at its end"


def early(
    level: Any = "o1",
    *,
    rank: int = 0,
    resumed: bool = False,
    stop: bool = False,
    ignore: tuple[str, ...] = (),
    precision: Any = "auto",
    require_proof: bool | None = None,
) -> EarlyVerdict:
    settings = Settings(
        recipe="script",
        amp=Amp(level=level),
        proof=Proof(stop=stop, ignore=ignore),
        require_proof=require_proof,
        train=ScriptSettings(precision=precision),
    )
    return EarlyVerdict(settings, rank, resumed=resumed)


@pytest.mark.parametrize(
    ("seen", "required", "reason"),
    [
        (WRONG, None, "what ran was not amp=o1: step 9: "),
        (WRONG, True, "what ran was not amp=o1: step 9: "),
        (UNKNOWN, True, "nothing proves that amp=o1 ran: step 9: "),
    ],
)
def test_the_first_reports_end_a_script_that_would_fail_by_them(capsys, seen, required, reason):
    verdict = early(require_proof=required)
    with pytest.raises(NotProved) as ended:
        verdict.judge([seen])
    assert str(ended.value) == verdict.reason
    assert verdict.reason.startswith(reason) and verdict.reason.endswith("; so the script was ended")
    assert (verdict.observed["verdict"], verdict.observed["why"] in verdict.reason) == (
        "unknown" if seen is UNKNOWN else "contradicted",
        True,
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seen", "options", "fault", "effect"),
    [
        (WRONG, {"resumed": True}, "is not applied", f"{END} (proof.stop=true would stop it)"),
        (WRONG, {"require_proof": False}, "is not applied", f"{END} (proof.stop=true would stop it)"),
        (UNKNOWN, {"resumed": True, "require_proof": True}, "can't be proved", f"{END} (require_proof=true)"),
        (UNKNOWN, {}, "can't be proved", "it continues, and ends without a proof"),
        (UNKNOWN, {"stop": True}, "can't be proved", "it continues, and ends without a proof"),
    ],
)
def test_others_warn_once_of_each_reason_and_of_what_comes_of_it(capsys, seen, options, fault, effect):
    verdict = early(**options)
    verdict.judge([seen])
    verdict.judge([seen])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) > 0
    assert all(line.startswith(f"{WARNING}{fault}: step 9: ") and line.endswith(effect) for line in lines)
    assert (verdict.reason, verdict.stops) == ("", False)


def test_after_reports_that_prove_the_mode_none_ends_the_script(capsys):
    verdict = early()
    verdict.judge([GOOD])
    assert capsys.readouterr().err == ""
    verdict.judge([GOOD, WRONG])
    assert "is not applied" in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_asks_once_to_stop_and_the_first_says_so(capsys, rank):
    verdict, asked = early(rank=rank, resumed=True, stop=True), []
    verdict.ask_to_stop = lambda: asked.append(rank)
    verdict.judge([WRONG])
    verdict.judge([WRONG, report(calls=both("float32"), step=17)])
    verdict.warn("no step was taken")
    assert (asked, verdict.stops) == ([rank], True)
    lines = capsys.readouterr().err.splitlines()
    assert bool(lines) is (rank == 0)
    for line in lines[:-1]:
        assert line.endswith("so it is asked to save and stop (proof.stop=true), and the run fails")
    if lines:
        assert lines[-1] == f"{WARNING}can't be proved: no step was taken; it continues, and ends without a proof"


def test_so_many_warnings_are_printed_and_no_more(capsys):
    verdict = early()
    for number in range(MOST_WARNINGS + 2):
        verdict.warn(f"reason {number}")
    assert capsys.readouterr().err.count("reason") == MOST_WARNINGS


@pytest.mark.parametrize(
    ("level", "precision", "advised"), [("o0", "auto", True), ("o0", "script", False), ("o1", "auto", False)]
)
def test_a_script_asked_for_float32_that_applies_a_mode_itself_is_told_how_to_say_so(level, precision, advised):
    verdict = early(level, precision=precision)
    with pytest.raises(NotProved, match="what ran was not amp="):
        verdict.judge([report(level, calls=both("bfloat16" if level == "o0" else "float32"))])
    assert ("amp=MODE train.precision=script" in verdict.reason) is advised


@pytest.mark.parametrize(
    ("precision", "dtype", "words"),
    [
        ("auto", "float16", "say amp.dtype=float16 train.precision=script, "),
        ("script", "float16", "say amp.dtype=float16, "),
        ("script", "float32", "it applied none: switch it on by the script's own argument"),
        ("script", "float32", "as in libraries that know GPUs alone, leave out train.precision=script"),
        ("auto", "float32", ""),
    ],
)
def test_a_script_in_another_dtype_is_told_how_to_ask_for_it_or_to_switch_it_on(precision, dtype, words):
    verdict = early("o1", precision=precision)
    with pytest.raises(NotProved):
        verdict.judge([report("o1", calls=both(dtype))])
    assert words in verdict.reason and ("amp.dtype=" in verdict.reason) is ("amp.dtype=" in words)


def test_an_ignored_operator_is_no_reason():
    odd = report(unaccounted={"mylib.gelu.default": 2})
    with pytest.raises(NotProved, match="mylib"):
        early(require_proof=True).judge([odd])
    early(require_proof=True, ignore=("mylib.*",)).judge([odd])
