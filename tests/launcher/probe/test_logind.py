from __future__ import annotations

import pytest

from launcher.probe.host import ends_at_logout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Login]\nKillUserProcesses=yes\n", True),
        ("[Login]\nKillUserProcesses = true\n", True),
        ("[Login]\n#KillUserProcesses=yes\n", False),
        ("[Login]\nKillUserProcesses=yes\nKillUserProcesses=no\n", False),
        ("", False),
    ],
)
def test_whether_processes_end_at_logout_is_read_from_logind_conf(tmp_path, text, expected):
    (tmp_path / "logind.conf").write_text(text)
    assert ends_at_logout("mei", [str(tmp_path / "logind.conf")], str(tmp_path / "linger")) is expected


def test_a_later_file_wins_and_a_lingering_user_is_exempt(tmp_path):
    (tmp_path / "logind.conf.d").mkdir()
    (tmp_path / "logind.conf.d" / "50-site.conf").write_text("KillUserProcesses=yes\n")
    places = [str(tmp_path / "none.conf"), str(tmp_path / "logind.conf.d")]
    assert ends_at_logout("mei", places, str(tmp_path / "linger"))
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / "mei").touch()
    assert not ends_at_logout("mei", places, str(tmp_path / "linger"))
