from __future__ import annotations

from pathlib import Path

import pytest

from launcher.probe import health


@pytest.mark.parametrize(
    ("vendor", "kind", "is_gpu"),
    [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x1002", "0x030000", False), ("0x10de", "", False)],
)
def test_a_card_of_nvidias_is_known_by_its_maker_and_class(tmp_path: Path, vendor: str, kind: str, is_gpu: bool):
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    if kind:
        (tmp_path / "class").write_text(f"{kind}\n")
    assert health._is_nvidia_gpu(tmp_path) is is_gpu
