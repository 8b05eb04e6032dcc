import math
import re

import pytest

from launcher.admit import Refused
from launcher.runs.decode import admitted, decode
from launcher.runs.remote_record import Known, Pointer, Stamp
from launcher.runs.schema import PlanRecord, ResultRecord, Status

PROCESS = {"host": "n7", "boot": "b", "pid": 7, "start": 1}


@pytest.mark.parametrize(
    ("values", "record", "wrong"),
    [
        ({"attempt": 2}, Status(attempt=2), []),
        ({"attempt": None}, Status(), []),
        ({"attempt": "2"}, Status(), ["attempt is not a whole number"]),
        ({"attempt": True}, Status(), ["attempt is not a whole number"]),
        ({"reason": 3, "state": "done"}, Status(state="done"), ["reason is not text"]),
        ({"process": {**PROCESS, "pid": []}}, Status(), ["process.pid is not a whole number"]),
        ({"process": {**PROCESS, "start": None}}, Status(), ["process is not an object"]),
        ({"process": 7}, Status(), ["process is not an object"]),
        ({"of another version": [1]}, Status(), []),
        ({"swept": [["amp"]]}, PlanRecord(), ["swept is not pairs of a name and a value"]),
        ({"swept": "amp"}, PlanRecord(), ["swept is not pairs of a name and a value"]),
        ({"arms": [{"arm": "00"}, {"arm": 1}]}, PlanRecord(), ["arms holds what is not an object"]),
        ({"words": ["amp=o2", 3]}, PlanRecord(), ["words holds what is not text"]),
        ({"settings": {"amp": 3, "batch": 8}}, PlanRecord(settings=PlanRecord().settings._replace(batch=8)),
         ["settings.amp is not an object"]),
        ({"versions": {"torch": "2.4", "numpy": 2}}, ResultRecord(versions={"torch": "2.4"}),
         ["versions.numpy is not text"]),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_left_out_and_named_and_the_rest_is_kept(values, record, wrong):
    assert decode(type(record), values) == (record, wrong)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1e300, 1e300, 10**400, "1", True])
def test_a_number_is_a_finite_one(number):
    record, wrong = decode(ResultRecord, {"throughput": {"mean": number, "p10": 1.5}})
    assert (record.throughput.mean, record.throughput.p10) == (None, 1.5)
    assert wrong == ["throughput.mean is not a number"]


STATE = ["running", "", 1, None, None, None, 0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (None, "it is None and should be an object"),
        ({"state": STATE}, "it has no seen"),
        ({"state": STATE, "seen": None}, "it.seen is None and should be a number"),
        ({"state": STATE[:-1], "seen": 1.0}, "it.state is not an object"),
        ({"state": ["gone", *STATE[1:]], "seen": 1.0}, "it.state.name is 'gone' and should be one of cancelled, .*"),
        ({"state": ["done", "x" * 2001, *STATE[2:]], "seen": 1.0}, "it.state.reason is .* at most 2000 characters"),
        ({"state": STATE, "seen": 1.0, "log": ["/log", [7]]}, "an item of it.log.lines is 7 and should be text .*"),
        ({"state": STATE, "seen": 1.0, "stamps": {"a": None}}, "it.stamps.a is None and should be an object"),
        ({"state": STATE, "seen": 1.0, "stamps": {"\x1b]0;x\a" * 1000: 5}}, r"it.stamps.'\\x1b\]0;[ -~]{1,60} is 5 .*"),
    ],
)
def test_what_others_say_is_refused_where_a_field_is_missing_or_out_of_its_bounds(values, why):
    with pytest.raises(Refused) as refused:
        admitted(Known, values, "it")
    assert re.fullmatch(why, str(refused.value))


def test_what_others_say_has_its_types_and_bounds_and_a_newer_version_may_say_more():
    address = {"destination": "me@host", "of a newer version": 1}
    assert admitted(Pointer, {"address": address, "root": "/r", "token": "t", "name": "a\x1bb"}, "it").name == "a?b"
    stamps = admitted(Known, {"state": STATE, "seen": 1.0, "stamps": {"a": [3, 4], "b": True}}, "it").stamps
    assert stamps == {"a": Stamp(3, 4), "b": True}
