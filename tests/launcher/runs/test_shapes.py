import json
import math

import pytest

from launcher.runs import shapes, store
from tests.launcher.run_folders import finished


@pytest.mark.parametrize(
    ("values", "left", "said"),
    [
        ({"attempt": 2}, {"attempt": 2}, []),
        ({"attempt": None}, {"attempt": None}, []),
        ({"attempt": "2"}, {}, ["attempt is not a whole number"]),
        ({"attempt": True}, {}, ["attempt is not a whole number"]),
        ({"reason": 3, "state": "done"}, {"state": "done"}, ["reason is not text"]),
        ({"process": {"pid": [], "host": "x"}}, {"process": {"host": "x"}}, ["process.pid is not a whole number"]),
        ({"process": 7}, {}, ["process is not an object"]),
        ({"of another version": [1]}, {"of another version": [1]}, []),
    ],
)
def test_what_does_not_fit_is_left_out_and_named_and_the_rest_is_kept(values, left, said):
    assert shapes.fitting(values, shapes.STATUS) == (left, said)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, "1", True])
def test_a_number_is_a_finite_one(number):
    found, wrong = shapes.fitting({"throughput": {"mean": number, "p10": 1.5}}, shapes.RESULT)
    assert (found, wrong) == ({"throughput": {"p10": 1.5}}, ["throughput.mean is not a number"])


@pytest.mark.parametrize("swept", [[["amp"]], [3], {"amp": 1}, "amp"])
def test_what_a_sweep_varies_comes_in_pairs(swept):
    assert shapes.fitting({"swept": swept}, shapes.PLAN) == ({}, ["swept is not pairs of a name and a value"])


def test_one_wrong_arm_costs_all_of_them(root):
    arms = [{"arm": "00", "swept": [["amp", "o0"]]}, {"arm": 1}]
    assert shapes.fitting({"arms": arms}, shapes.PLAN) == ({}, ["arms holds what is not an object"])


def test_what_is_read_is_not_changed_in_place():
    values = {"process": {"pid": "x"}}
    shapes.fitting(values, shapes.STATUS)
    assert values == {"process": {"pid": "x"}}


@pytest.mark.parametrize("damage", [b'{"attempt": "one"}', b"[" * 100_000, b"\0\0", b"9" * 5000, b"null", b""])
def test_a_status_of_another_shape_is_read_as_far_as_it_can_be(root, damage):
    folder = finished(root, "20260102-030405-brave-otter")
    (folder / "status.json").write_bytes(damage)
    assert not (store.load(str(folder)).status or {}).get("attempt")


def test_what_a_launcher_and_a_trainer_write_fits(root):
    folder = finished(root, "20260102-030405-brave-otter")
    for name, shape in shapes.OF_FILE.items():
        if (folder / name).exists():
            assert shapes.fitting(json.loads((folder / name).read_text()), shape)[1] == [], name
