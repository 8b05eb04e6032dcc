"""Each guest computes under the launcher what it computes alone, and its verdict is right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guests import running
from tests.guests.reading import MODES, Guest, read
from tests.guests.running import Left

GUESTS = read()


def _cases() -> list[object]:
    return [
        pytest.param(
            guest,
            mode,
            id=f"{guest.family}-{guest.name}-{mode}",
            marks=[pytest.mark.xfail(strict=True, reason="doesn't hold yet")] if mode in guest.fails else [],
        )
        for guest in GUESTS
        for mode in MODES
        if mode in guest.verdicts
    ]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, bool], Left]:
    """What a guest leaves in plain Python; once for all modes that are compared with it."""
    by_name = {(guest.family, guest.name): guest for guest in GUESTS}

    @functools.cache
    def run(family: str, name: str, by_hand: bool) -> Left:
        return running.alone(by_name[family, name], tmp_path_factory.mktemp("alone"), by_hand=by_hand)

    return run


def test_names_are_used_once() -> None:
    assert len({(guest.family, guest.name) for guest in GUESTS}) == len(GUESTS)


@pytest.mark.parametrize(("guest", "mode"), _cases())
def test_a_guest_computes_what_it_computes_alone(guest: Guest, mode: str, alone, tmp_path: Path) -> None:
    ours = running.under_launcher(guest, tmp_path, mode)
    expected = guest.verdicts[mode]
    if expected != "contradicted":
        plain = alone(guest.family, guest.name, mode != "o0")
        assert plain.state or plain.code or plain.out, plain
        found = running.differences(plain, ours)
        assert not found, "\n".join([*found, f"the launcher's stderr: {ours.err}"])
    assert expected in (None, ours.verdict), f"{ours.verdict}: {ours.why}\n{ours.err}"
