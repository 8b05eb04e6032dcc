"""TensorBoard's event files: written by tensorboardX and TensorFlow, by hand, and damaged."""

from __future__ import annotations

import base64
import os
import struct
import sys
from pathlib import Path

import pytest

from amp_launcher.around import event_files, library_records
from tests.amp_launcher import forking
from tests.recipes.data.image_files import field, varint

NAME = "events.out.tfevents.1.host.2.0"
SAMPLE = base64.b64decode("""
GAAAAAAAAACjf0siCbSPZEO1wNpBGg1icmFpbi5FdmVudDoy18l46yAAAAAAAAAAKe2pUAmmP3tDtcDaQRADKhMKEQoKdHJhaW4vbG9zcxUewdM8mhmz
mRsAAAAAAAAAGg2eEwnqQ3tDtcDaQRADKg4KDAoFZXBvY2gVAAAAABMe3YYgAAAAAAAAACntqVAJOr57Q7XA2kEQByoTChEKCnRyYWluL2xvc3MVrsF8
PPFWpIEbAAAAAAAAABoNnhMJUL97Q7XA2kEQByoOCgwKBWVwb2NoFQAAAADTUKRCHQAAAAAAAABgL98jCUxsfEO1wNpBEAcqEAoOCgd2YWxfYWNjFQAA
AD/euFEmHgAAAAAAAADZ3BIyCae4fEO1wNpBEAcqEQoPCgh2YWxfbG9zcxUXWQQ8MbnmrBsAAAAAAAAAGg2eEwk7uXxDtcDaQRAHKg4KDAoFZXBvY2gV
AAAAAPADZnA=
""")
"""What tensorboardX 2.6.5 wrote for Lightning 2.6: a loss every 4 of 8 steps, then a validation."""


def record(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + bytes(4) + content + bytes(4)


def event(step: int, scalars: dict[str, float]) -> bytes:
    values = (field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in scalars.items())
    return record(b"\x09" + bytes(8) + (b"\x10" + varint(step) if step else b"") + field(5, b"".join(values)))


def tensor(content: bytes) -> bytes:
    return record(field(5, field(1, field(1, b"loss") + field(8, content))))


def write(folder: Path, *events: bytes, name: str = NAME, at: float = 1000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(events))
    os.utime(folder / name, (at, at))
    return folder / name


@pytest.fixture(autouse=True)
def imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", object())
    monkeypatch.setitem(sys.modules, "lightning", object())


def test_lightnings_log_by_tensorboardx_gives_losses_and_evaluations_of_steps_from_1(tmp_path):
    write(tmp_path / "lightning_logs" / "version_0", SAMPLE)
    records = library_records.read([tmp_path], since=500)
    assert {step: round(values["loss"], 4) for step, values in records.steps.items()} == {4: 0.0258, 8: 0.0154}
    ((step, measures),) = records.evaluations
    assert (step, measures["accuracy"], round(measures["loss"], 5)) == (8, 0.5, 0.00808)


def test_trainers_logs_of_one_folder_are_read_together(tmp_path):
    training = {"train/loss": 0.5, "train/learning_rate": 0.25, "train/grad_norm": 2.0, "train/epoch": 1.0}
    write(tmp_path, event(2, training))
    write(tmp_path, event(2, {"eval/loss": 0.75, "train/epoch": 1.0}), name=NAME + "1", at=2000)
    records = library_records.read([tmp_path], since=500)
    assert records.steps == {2: {"loss": 0.5, "lr": 0.25, "grad_norm": 2.0}}
    assert records.evaluations == [(2, {"loss": 0.75})]
    assert library_records.read([tmp_path], since=1500).steps == {}


def test_the_newest_folder_is_read_and_a_csv_file_before_it(tmp_path):
    write(tmp_path / "version_0", event(1, {"epoch": 0, "loss": 0.5}), at=2000)
    write(tmp_path / "version_1", event(1, {"epoch": 0, "loss": 0.25}), at=3000)
    write(tmp_path / "version_2", event(1, {"epoch": 0, "loss": 0.125})[:-9], at=4000)
    assert library_records.read([tmp_path], since=500).steps == {2: {"loss": 0.25}}
    write(tmp_path, b"step,train_loss\n1,0.75\n", name="metrics.csv")
    assert library_records.read([tmp_path], since=500).steps == {2: {"loss": 0.75}}


def test_logs_that_the_script_writes_itself_are_not_read_since_their_steps_may_be_anything(tmp_path):
    write(tmp_path, event(1, {"train/loss": 0.5}), event(2, {"train/loss": 0.25}))
    assert library_records.read([tmp_path], since=500) is None


@pytest.mark.parametrize("kind", ["tensors", "simple"])
def test_scalars_that_tensorflow_writes_are_read(written, kind):
    assert event_files.read((written / kind).iterdir()) == {0: {"loss": 0.25}, 300: {"loss": 0.25}}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    ended = forking.run("tests.amp_launcher.around.write_events", str(folder))
    assert ended.returncode == 0, ended.stderr
    return folder


def test_a_tensors_value_is_in_its_bytes_or_in_its_list_packed_or_not(tmp_path):
    half, float32, another = struct.pack("<f", 0.5), b"\x08\x01", b"\x08\x02"
    for content in (field(4, half), field(5, half), b"\x2d" + half):
        assert event_files.read([write(tmp_path, tensor(float32 + content))]) == {0: {"loss": 0.5}}
        assert event_files.read([write(tmp_path, tensor(another + content))]) == {}
    assert event_files.read([write(tmp_path, tensor(float32 + field(4, half * 2)))]) == {}


def test_events_before_a_truncated_one_are_read(tmp_path):
    last, endless = event(2, {"loss": 0.25}), struct.pack("<Q", 2**64 - 1) + bytes(40)
    for end in (*(last[:length] for length in range(len(last))), endless):
        assert event_files.read([write(tmp_path, event(1, {"loss": 0.5}), end)]) == {1: {"loss": 0.5}}


def test_a_log_with_any_byte_changed_is_read_or_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(library_records, "TOUCHES", 1)
    for index in range(len(SAMPLE)):
        for byte in (0x7F, 0xFF):
            write(tmp_path, SAMPLE[:index], bytes([byte]), SAMPLE[index + 1 :])
            library_records.read([tmp_path], since=500)


@pytest.mark.parametrize(
    "content",
    [
        record(b"\x80" * 4000),
        record(b"\x10" + b"\xff" * 9 + b"\x01" + field(5, b"")),
        event(2**64 - 1, {"epoch": 0, "loss": 0.5}),
        event(2**70, {"epoch": 0, "loss": 0.5}),
        record(field(5, b"\x0a\xff\xff\x03")),
        record(field(5, field(1, field(1, b"\xff\xfe") + b"\x15" + bytes(4)))),
        record(bytes(4097)),
        b"",
    ],
    ids=["integer", "no values", "negative step", "step", "length", "no text", "large", "empty"],
)
def test_a_log_of_hostile_bytes_is_ignored(tmp_path, content):
    write(tmp_path, content)
    assert library_records.read([tmp_path], since=500) is None


def test_large_events_are_skipped_and_too_many_refused(tmp_path, monkeypatch):
    image = record(field(5, bytes(100_000)))
    assert event_files.read([write(tmp_path, image, event(1, {"loss": 0.5}), image)]) == {1: {"loss": 0.5}}
    monkeypatch.setattr(event_files, "LARGEST", 2 * len(event(1, {"loss": 0.5})))
    path = write(tmp_path, event(1, {"loss": 0.5}), event(2, {"loss": 0.5}))
    assert len(event_files.read([path])) == 2
    with pytest.raises(ValueError, match="too many events"):
        event_files.read([path, path])


def test_only_the_newest_folders_are_read(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(event_files, "read", lambda paths: opened.append(paths[0].parent.name) or {})
    for number in range(8):
        write(tmp_path / str(number), SAMPLE, at=1000 + number)
    assert library_records.read([tmp_path], since=500) is None
    assert opened == ["7", "6", "5", "4"]


def test_only_regular_files_of_this_user_are_opened(tmp_path, monkeypatch):
    for name in ("pipe", "link"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / NAME)  # which would be waited for
    (tmp_path / "link" / NAME).symlink_to("/dev/zero")
    path = write(tmp_path, event(1, {"epoch": 0, "loss": 0.5}))
    assert library_records.read([tmp_path], since=500).steps == {2: {"loss": 0.5}}
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert library_records.read([tmp_path], since=500) is None
