"""Hosts that lie when they are asked for an action or for facts: one line of error, and nothing here changes."""

from __future__ import annotations

import functools
import sys
import types

import pytest

from launcher.code.uv_project import UvProject
from launcher.doctor import examination
from launcher.errors import Unavailable
from launcher.executors.ssh import submit_client
from launcher.ssh import environment_client, host, probe_client
from launcher.ssh.failures import BadAnswer
from tests.launcher.hosts import LAPTOP
from tests.launcher.ssh.hostile import answering
from tests.launcher.ssh.victim import BAD, REFUSED, RUN, UNHURRIED

ACTIONS = [
    *(("cancel --now", 1, f"answer({value})") for value in "None 5 [] {} [5] ['',''] [None] ['x'*9999]".split()),
    *(("resume", 3, f"answer({value})") for value in "None 5 {} [] ['a'] 'x' ['a']*999".split()),
    ("rm", 3, "send({'error': 5})"),
]


def test_a_false_answer_to_an_action_is_one_line(victim):
    victim.deadline(UNHURRIED)
    requests = {"cancel --now": "cancel", "resume": "resume", "rm": "remove"}
    runs = victim.runs(answering(requests[verb], body) for verb, _, body in ACTIONS)
    for run, (verb, code, body) in zip(runs, ACTIONS, strict=True):
        done = victim.type(*verb.split(), run.id)
        assert done.code == code and (done.out + done.err).count(REFUSED) == 1, body


def test_a_false_size_of_a_run_removes_nothing(victim):
    for answer in ("None", "[]", "['x']", "[-1]", "[1,2]"):
        victim.liar.says(answering("sizes", f"answer({answer})"))
        done = victim.type_only("rm", RUN[:-1])
        assert done.code == 3 and (done.out + done.err).count(REFUSED) == 1, answer


def test_a_false_answer_about_a_replay_is_refused_and_its_record_kept(victim):
    """The replay may have been started all the same."""
    for answer in ("5", "[1,2]", "[1,2,3]", "[-1,2,True]", "[1,'x',True]"):
        victim.liar.says(answering("verify", f"answer({answer})"))
        done = victim.type_only("verify", RUN)
        assert done.code == 3 and "may have been started or not" in done.err


def test_a_defect_of_the_agent_is_reported_in_one_line(victim):
    """With the launcher's own agent: an argument that it can't know."""
    address = victim.liar.address(python=sys.executable)
    failed = r"liar: the launcher's agent there failed: TypeError: .*lines.*\(agent.py:\d+\)"
    with pytest.raises(Unavailable, match=failed):
        host.connect(address).ask("hello", host.hello, lines=5)
    assert host.connect(address).ask("hello", host.hello)["system"]


FACTS = ("None", "5", "[]", "{}", "{'host': 5}", "{'x': 1}", "{'host': '\\x1b[2J'}")


def test_false_facts_of_a_host_are_one_line(victim):
    victim.deadline(UNHURRIED)
    requests = {
        "probe": (probe_client._admitted, {"asked": {}}),
        "hello": (host.hello, {}),
        "examine": (examination._examined, {"run_root": "/runs"}),
    }
    liars = victim.liar.liars("".join(answering(name, f"answer({value})") for name in requests) for value in FACTS)
    for name, (admit, arguments) in requests.items():
        calls = [functools.partial(host.connect(address).ask, name, admit, **arguments) for address in liars]
        assert all(REFUSED in text for text in victim.refusals(calls))
    honest = answering("hello", "answer({'host': 'a', 'system': 'b', 'python': 'c'})")
    where = [f"cluster.ssh_config={victim.liar.config}", f"cluster.python={victim.liar.liar}", "run_root=/runs"]
    for verb, request in (("plan", "probe"), ("doctor", "hello"), ("doctor", "examine")):
        victim.liar.says(honest + answering(request, "answer({'host': 5})"))
        done = victim.type_only(verb, "cluster=ssh", "cluster.host=liar", *where)
        assert done.code == 3 and BAD in done.out + done.err


def test_what_a_host_says_of_an_environment_is_text_with_an_end(victim, tmp_path):
    project = UvProject(lock=tmp_path / "uv.lock", member="uv_project", files={}, digest="0", packages={})
    for lie in ("item(5)", "item(None)", "item('x' * 99999)", "[item('x') for _ in range(5001)]"):
        victim.liar.says(answering("make_environment", f"{lie}; answer()"))
        with pytest.raises(BadAnswer, match=REFUSED):
            environment_client.make(project, LAPTOP, victim.liar.address(), shared=False)


def test_whether_a_host_has_the_code_is_yes_or_no(victim):
    plan = types.SimpleNamespace(code_dir="/runs/.code/0")
    for address in victim.liar.liars(answering("has_code", f"answer({value})") for value in ("None", "5", "['yes']")):
        with pytest.raises(BadAnswer, match=REFUSED):
            submit_client.send_code(plan, {}, address)
