from __future__ import annotations

import io

import pytest

from launcher.ssh import protocol


def reader(data: bytes):
    stream = io.BytesIO(data)

    def read(count: int) -> bytes:
        found = stream.read(count)
        if len(found) < count:
            raise protocol.Ended
        return found

    return read


def test_a_packed_message_is_received_and_keepalives_are_skipped():
    long = bytes(range(256)) * 3000
    read = reader(
        protocol.ALIVE + protocol.pack({"a": ["é", None, 1.5]}) + b"".join(protocol.packed_bytes(long)) + protocol.ALIVE
    )
    assert protocol.receive(read) == {"a": ["é", None, 1.5]}
    parts = b""
    while len(parts) < len(long):
        parts += protocol.receive(read)
    assert parts == long
    with pytest.raises(protocol.Ended):
        protocol.receive(read)


@pytest.mark.parametrize("data", [b"Last login: yesterday\n", b"J\xff\xff\xff\xff", b"J\x00\x00\x00\x02{]"])
def test_data_that_is_no_frame_is_an_error(data):
    with pytest.raises(protocol.Garbled):
        protocol.receive(reader(data))


def test_a_frame_that_breaks_off_is_an_end():
    with pytest.raises(protocol.Ended):
        protocol.receive(reader(protocol.pack({"a": 1})[:-1]))
