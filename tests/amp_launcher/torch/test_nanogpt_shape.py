"""A script in nanoGPT's shape, with the calls in it: every mode, and a resume from what it saves already."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pytest

from amp_launcher.precision.levels import amp_named
from amp_launcher.settings import Settings
from amp_launcher.typed import plain
from tests.amp_launcher.torch import nanogpt_shape
from tests.amp_launcher.torch.scripts import Ended, fork

MODES = {
    "o0": "float32 in 100.0% of forward and 100.0% of backward",
    "o1": "bfloat16 in 100.0% of forward and 100.0% of backward",
    "o2": "bfloat16 in 100.0% of forward and 100.0% of backward",
    "o3": "bfloat16 in 100.0% of forward and 100.0% of backward",
    "fp8": "float8_e4m3fn in 100.0% of forward",
}


def run(text: str, mode: str, folder: Path, *passed: str, ranks: int = 1) -> Ended:
    """Run it as the launcher does, in a run of its own, with what it saves in `folder`/out."""
    own = folder / f"run-{len(list(folder.iterdir()))}"
    own.mkdir()
    amp, _ = amp_named(mode, None)
    values: dict[str, Any] = plain(Settings(recipe="script", framework="torch", device="cpu", train=None, amp=amp))
    (own / "plan.json").write_text(json.dumps({"schema": 2, "settings": {**values, "train": {}}}))
    arguments = [passed[0], str(folder / "out"), *passed[1:]]
    ended = fork(own, text, f"amp={mode}", passed=arguments, ranks=ranks, LAUNCHER_SPEC=str(own / "plan.json"))
    assert ended.code == 0, ended.err
    return ended


def losses(ended: Ended) -> list[str]:
    return sorted(line for line in ended.out.splitlines() if line.startswith("rank "))


def test_fewer_than_fifteen_lines_are_changed() -> None:
    lines = difflib.ndiff(nanogpt_shape.SCRIPT.splitlines(), nanogpt_shape.changed().splitlines())
    assert sum(line[:2] in ("+ ", "- ") for line in lines) < 15


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_proved_and_resumes_bit_for_bit_from_what_the_script_saves(mode: str, tmp_path: Path) -> None:
    whole = run(nanogpt_shape.changed(), mode, tmp_path, "8")
    resumed = run(nanogpt_shape.changed(), mode, tmp_path, "8", "resume")
    assert losses(resumed) == losses(whole)[4:] and len(losses(whole)) == 8
    assert next(line for line in whole.out.splitlines() if "held out 4" in line) in resumed.out
    for ended in (whole, resumed):
        assert ended.verdict == "proved" and MODES[mode] in ended.result["observed"]["why"], ended.result["observed"]


def test_at_o0_the_changed_script_trains_bit_for_bit_as_it_did(tmp_path: Path) -> None:
    before, after = (run(text, "o0", tmp_path, "3") for text in (nanogpt_shape.SCRIPT, nanogpt_shape.changed()))
    assert losses(after) == losses(before) and len(losses(after)) == 3


@pytest.mark.parametrize(("flag", "ranks"), [("compile", 1), ("", 2)], ids=["compiled", "two ranks"])
@pytest.mark.parametrize("mode", ["o2"])
def test_it_resumes_bit_for_bit_compiled_and_on_two_ranks(mode: str, flag: str, ranks: int, tmp_path: Path) -> None:
    whole = run(nanogpt_shape.changed(), mode, tmp_path, "6", flag, ranks=ranks)
    resumed = run(nanogpt_shape.changed(), mode, tmp_path, "6", "resume", flag, ranks=ranks)
    assert losses(resumed) == [line for line in losses(whole) if int(line.split()[3]) >= 4]
    assert len(losses(resumed)) == 2 * ranks and whole.verdict == resumed.verdict == "proved"
