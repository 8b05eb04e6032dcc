"""Texts of hosts reach the terminal without what a terminal acts on; `Victim.type_only` checks each screen."""

from __future__ import annotations

import json

import pytest

from tests.launcher.ssh.hostile import answering
from tests.launcher.ssh.victim import RUN, UNHURRIED

TEXT = "\\x1b]0;owned\\x07a\\x1b[2Jb\\x9b31mc\\u202ed\\u2066e\\x00f\\rg\\x7fh\\x85i\\ud800j"


TEXTS = (
    f"look(status(state=['running', '{TEXT}', 1, None, '{TEXT}', None, 0]))",
    f"look(status(state=['failed', '{TEXT}', 1, 1, None, None, 0], log=['{TEXT}', ['{TEXT}']]))",
    f"look({{'error': '{TEXT}'}})",
    f"send({{'say': '{TEXT}'}}); look(status())",
    f"send({{'error': '{TEXT}', 'code': 1}})",
    f"send({{'error': '{TEXT}', 'code': 2}})",
    f"send({{'error': '{TEXT}', 'code': 3}})",
    f"look(status(files={{'{TEXT}': 5}}))",
    f"look(status(state=['{TEXT}'] * 7))",
)


@pytest.mark.parametrize("body", TEXTS)
def test_texts_of_a_host_reach_the_terminal_without_what_a_terminal_acts_on(victim, body):
    victim.deadline(UNHURRIED)
    also = "".join(answering(name, body) for name in ("log", "cancel", "contents")) if "send" in body else ""
    victim.liar.says(answering("look", body) + also)
    for words in (["ls"], ["ls", RUN], ["logs", RUN], ["cancel", RUN], ["report", RUN], ["fetch", RUN]):
        (victim.run / "known.json").unlink(missing_ok=True)
        victim.type_only(*words)


RECORDS = {
    "plan.json": {"name": "T", "words": ["T"], "recipe": "T", "framework": "T", "swept": [["T", "T"]], "queue": "T",
                  "container": {"kind": "T", "image": "T"}, "script": {"file": "T", "arguments": ["T"]}},
    "status.json": {"state": "failed", "attempt": 1, "reason": "T", "started": "T", "ended": "T"},
    "submission.json": {"queue": "T", "host": "T", "submitted": "T", "sweep": "T"},
    "result.json": {"status": "failed", "attempts": 1, "reason": "T", "framework": "T", "recipe": "T", "mechanism": "T",
                    "requested": {"T": "T"}, "effective": {"amp": "T", "dtype": "T"}, "nonfinite": ["T"],
                    "observed": {"verdict": "T", "why": "T", "dtype": "T", "device": "T", "param_dtypes": {"T": 1}},
                    "throughput": {"unit": "T", "mean": 1.0, "p10": 1.0, "p90": 1.0}, "loss": {"last": 1.0},
                    "eval": {"accuracy": 0.5, "T": 0.1}, "profile": {"tool": "T", "trace": "T", "steps": [1, 2]},
                    "versions": {"T": "T"}, "digests": {"T": "T"}, "hardware": {"T": "T"},
                    "comparison": {"verdict": "T"}},
    "provenance.json": {"created": "T", "host": "T", "command": ["T"], "code": {"digest": "T", "commit": "T"}},
}  # fmt: skip


def test_records_that_a_host_sent_reach_the_terminal_without_what_a_terminal_acts_on(victim):
    victim.deadline(UNHURRIED)
    hostile = json.loads(f'"{TEXT}"'.replace("\\x", "\\u00"))
    files = {name: [[1, 2], json.dumps(values).replace('"T"', json.dumps(hostile))] for name, values in RECORDS.items()}
    state = ["failed", hostile, 1, 1, "2026-01-02T03:04:05Z", None, 0]
    victim.liar.says(answering("look", f"look(status(state={state!r}, files={files!r}))"))
    assert "owned" not in victim.type_only("ls").out
    assert "owned" not in victim.type_only("ls", RUN).out
    for words in (["watch"], ["report"], ["report", "--markdown", "-"], ["cancel"]):
        victim.type_only(*words, RUN)
    assert (victim.run / "result.json").exists()


def test_an_arm_whose_exit_code_is_no_number_is_listed(victim):
    victim.deadline(UNHURRIED)
    plan = json.dumps({"arms": [{"arm": "00", "swept": [["amp", "o0"]]}]})
    files = {"plan.json": [[1, 2], plan], "arms/00/failed": [[1, 2], "exit code ²"]}
    arms = "2 if request['with']['runs'][0]['arms'] else 1"  # the second file is asked for by the first one
    victim.liar.says(answering("look", f"look(status(files=dict(list({files!r}.items())[: {arms}])))"))
    assert "amp=o0  failed: its trainer ended with exit code ²" in victim.type_only("ls", RUN).out
