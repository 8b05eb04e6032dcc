import os
import re
import signal
import sys

import pytest

from launcher.compare.last_words import last_words
from launcher.executors import interrupts
from launcher.runs import selection, store
from launcher.runs.states import State
from launcher.ui.live import Followed, watch
from tests.launcher.compare import folders as comparisons
from tests.launcher.run_folders import DEAF, NAME, STEPPING, begin, make, metrics, result, start, state, sweep, until
from tests.launcher.terminal import Terminal, screen_of

# What `run` does in the foreground.
FOREGROUND = """
import sys
from pathlib import Path
from launcher.compare.last_words import last_words
from launcher.executors import stopping
from launcher.runs.states import State
from launcher.ui.live import Followed, watch
folders = [Path(path) for path in sys.argv[1:]]
def on_interrupt(times):
    if times == 1:
        for folder in folders: stopping.request_stop(folder)
    else:
        stopping.kill_all(folders)
states = watch(folders, last_words, on_interrupt=on_interrupt, output=OUTPUT)
print("RETURNED", *(state.name for state in states.values()))
"""


# A program with a progress bar on stderr, whose lines are on both.
PRINTING = r"""
echo first; printf '\033[32mgreen\033[0m\n'
printf '{"step": 1, "seconds": 0.1, "time": 1.0}\n' >>"$RUN/metrics.jsonl"
until [ -e "$RUN/bar" ]; do sleep 0.05; done
for step in $(seq 2 12); do
  printf '\r%3d%%|%s|' $((step * 8)) "$(printf '#%.0s' $(seq 1 $step))" >&2
  printf '{"step": %s, "seconds": 0.1, "time": 1.0}\n' "$step" >>"$RUN/metrics.jsonl"
  while [ "$step" = 6 ] && [ ! -e "$RUN/go" ]; do sleep 0.05; done
done
printf '\r100%%|all of it is done\n' >&2
echo last; printf 'no end of line'
exit ${CODE:-0}
"""


UNTIL_GO = 'until [ -e "$RUN/go" ]; do sleep 0.05; done'
"""So that a run goes on until it was seen, however slowly the watching begins."""


CTRL_C = b"\x03"


def never(times):
    raise AssertionError("it was called")


def on_terminal(*folders, output=False):
    """The foreground watching in a terminal of its own."""
    argv = [sys.executable, "-c", FOREGROUND.replace("OUTPUT", str(output)), *map(str, folders)]
    return Terminal(argv, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})


def test_without_a_terminal_the_progress_is_plain_lines_and_ends_with_what_the_run_amounts_to(root, capsys):
    folder = begin(root, f"STEPS=30\n{STEPPING}")
    store.write_json(folder / "result.json", result())
    states = watch([folder], last_words, on_interrupt=never)
    assert [(path, ended.name) for path, ended in states.items()] == [(folder, "done")]
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert sum("brave-otter" in line and "done" in line for line in out.splitlines()) == 1
    assert "proved: 97% of the work in bfloat16" in out and str(folder) in out
    assert len(out.splitlines()) < 20
    assert selection.unfinished([str(root)]) == []


def test_a_run_that_dies_without_a_word_ends_the_watching(root, capsys):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    until(lambda: state(folder).name == "running")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert watch([folder], last_words, on_interrupt=never)[folder].name == "lost"
    assert f"process {child.pid} is gone" in capsys.readouterr().out


def test_on_a_terminal_the_progress_is_drawn_in_place(root):
    folder = begin(root, f"STEPS=40\n{STEPPING}\n{UNTIL_GO}")
    terminal = on_terminal(folder)
    terminal.expect(r"brave-otter +running .* \d+/500 .* 2560 .* 65536 .*1\.0 MiB")
    (folder / "go").touch()
    text = terminal.all_shown()
    assert b"\x1b[1A" in terminal.raw  # moved up to draw over what was there
    assert text.count("40/500") >= 1
    assert "RETURNED done" in text


def test_one_display_shows_all_runs_of_a_sweep_and_one_table_sums_them_up(root):
    cells = sweep(root, 3, make, trainer=f"STEPS=10\n{STEPPING}\n{UNTIL_GO}")
    start(*cells)
    terminal = on_terminal(*cells)
    terminal.expect("queued")
    for cell in cells:
        (cell / "go").touch()
    text = terminal.all_shown()
    assert "RETURNED done done done" in text
    _, *table = text[text.rindex("RUN ") :].splitlines()
    assert [line.split()[:2] for line in table[:3]] == [[f"00{index}", "done"] for index in range(3)]
    assert "continue with" not in text


def test_the_first_ctrl_c_asks_the_run_to_stop(root):
    folder = begin(root, STEPPING)
    terminal = on_terminal(folder)
    terminal.expect(r"running .* \d+/500")
    terminal.press(CTRL_C)
    terminal.expect("asked to save and stop at the next step; Ctrl-C again kills")
    text = terminal.all_shown()
    assert "RETURNED stopped" in text
    assert "saved at step" in text and f"resume {NAME}" in text
    assert "Traceback" not in text


def test_the_second_ctrl_c_kills(root):
    folder = begin(root, DEAF)
    terminal = on_terminal(folder)
    terminal.expect("running")
    terminal.press(CTRL_C)
    terminal.expect("asked to save")
    terminal.press(CTRL_C)
    text = terminal.all_shown()
    assert "killing" in text and "RETURNED cancelled" in text


def test_a_watcher_that_leaves_by_an_exception_restores_the_handler(root, monkeypatch):
    folder = begin(root, DEAF)
    monkeypatch.setattr(interrupts, "_presses", [signal.SIGINT])  # pressed before the watching began
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(AssertionError, match="it was called"):
        watch([folder], last_words, on_interrupt=never)
    assert signal.getsignal(signal.SIGINT) is before


def test_metrics_that_are_cut_back_on_resume_are_shown_from_where_they_go_on(root):
    folder = make(root)
    head = {"event": "start", "attempt": 1, "total_steps": 100, "epochs": 1, "resumed_from": None, "time": 0}
    metrics(folder, [head, *({"step": number, "time": number} for number in range(1, 51))])
    followed = Followed(folder)
    followed.read()
    assert followed.progress.step == 50
    content = (folder / "metrics.jsonl").read_bytes()
    os.truncate(folder / "metrics.jsonl", content.index(b'{"step": 21,'))
    metrics(folder, [{**head, "attempt": 2, "resumed_from": 20}, {"step": 21, "time": 90}])
    followed.read()
    assert (followed.progress.step, followed.progress.attempt) == (21, 2)


def test_an_arm_of_a_comparison_has_no_time_left_as_others_run_between_its_blocks(root):
    folder = root / NAME
    comparisons.plan_of(folder, ("o0", []), ("o1", []))
    start_row = {"event": "start", "attempt": 1, "total_steps": 100, "time": 0}
    metrics(folder / "arms/00", [start_row, *({"step": number, "time": number} for number in (1, 2))])
    followed = Followed(folder)
    followed.state = State("running", attempt=1)
    followed.read()
    control, _ = followed.rows()
    assert (control.label, control.progress.step, control.progress.seconds_left) == ("amp=o0", 2, None)


def test_on_a_terminal_a_run_s_own_output_scrolls_by_above_its_progress_which_waits_for_its_bar(root):
    folder = begin(root, PRINTING)
    terminal = on_terminal(folder, output=True)
    terminal.expect("(?s)green.*step 1")
    during = screen_of(terminal.raw)
    assert during[1:3] == ["first", "green"]
    assert re.fullmatch(r"brave-otter  running  step 1 .*", during[3]) and len(during) == 4
    (folder / "bar").touch()
    terminal.expect("48%")
    assert screen_of(terminal.raw)[1:] == ["first", "green", " 48%|######|"]
    (folder / "go").touch()
    terminal.all_shown()
    after = screen_of(terminal.raw)
    assert {"100%|all of it is done", "first", "green", "last", "no end of line"} < set(after)
    assert any(line.startswith("brave-otter  done after") for line in after) and after[-1] == "RETURNED done"
    assert b"\x1b[32mgreen\x1b[0m" in terminal.raw


def test_without_a_terminal_output_goes_where_the_run_printed_it_byte_by_byte(root, capfd):
    folder = make(root, trainer=f"CODE=3\n{PRINTING}")
    for gate in ("bar", "go"):
        (folder / gate).touch()
    start(folder)
    assert watch([folder], last_words, on_interrupt=never, output=True)[folder].name == "failed"
    out, err = capfd.readouterr()
    assert "first\n\x1b[32mgreen\x1b[0m\nlast\nno end of line" in out
    assert err.count("\r") == 12 and err.endswith("\r100%|all of it is done\n")
    assert "step" not in out
