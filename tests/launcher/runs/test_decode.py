import math

import pytest

from launcher.runs.decode import decode
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
        ({"settings": {"amp": 3, "batch": 8}}, PlanRecord(settings=(((None, None)), 8, (None,))),
         ["settings.amp is not an object"]),
        ({"versions": {"torch": "2.4", "numpy": 2}}, ResultRecord(versions={"torch": "2.4"}),
         ["versions.numpy is not text"]),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_left_out_and_named_and_the_rest_is_kept(values, record, wrong):
    assert decode(type(record), values) == (record, wrong)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, "1", True])
def test_a_number_is_a_finite_one(number):
    record, wrong = decode(ResultRecord, {"throughput": {"mean": number, "p10": 1.5}})
    assert (record.throughput.mean, record.throughput.p10) == (None, 1.5)
    assert wrong == ["throughput.mean is not a number"]
