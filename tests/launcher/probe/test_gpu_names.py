from __future__ import annotations

import pytest

from launcher.probe import gpu_names


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["tesla_v100-sxm2-32gb"], (7, 0)),
        (["a100_1g.10gb"], (8, 0)),
        (["2080ti"], (7, 5)),
        (["rtx3090"], (8, 6)),
        (["nvidia_geforce_rtx_4090"], (8, 9)),
        (["v100", "a100"], (8, 0)),
        (["v100", "big"], None),
        ([""], None),
        ([], None),
    ],
)
def test_gres_names_give_the_highest_compute_capability(types: list[str], expected: object) -> None:
    assert gpu_names.capability(types) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla T4", (7, 5)),
        ("NVIDIA TITAN V", None),
        ("GeForce GTX 1080 Ti", (6, 1)),
        ("GeForce RTX 2080 SUPER", (7, 5)),
        ("Quadro RTX 6000", (7, 5)),
        ("Quadro P2000", None),
        ("NVIDIA A100 80GB PCIe", (8, 0)),
        ("NVIDIA GeForce RTX 3090", (8, 6)),
        ("NVIDIA RTX A6000", (8, 6)),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA RTX 4000 SFF Ada Generation", (8, 9)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA Graphics Device", None),
    ],
)
def test_a_gpu_name_gives_its_compute_capability(name: str, expected: object) -> None:
    assert gpu_names.of_name(name) == expected


@pytest.mark.parametrize(
    ("name", "fits", "differs"),
    [
        ("NVIDIA A100-SXM4-80GB", ("a100", "A100", "a100_80gb", "nvidia_a100-sxm4-80gb"), ("a10", "a100_40gb", "h100")),
        ("NVIDIA GeForce RTX 3090", ("rtx3090", "3090", "geforce_rtx_3090"), ("rtx309", "3090ti", "gtx3090")),
    ],
)
def test_a_gpu_is_of_a_type_by_the_words_of_its_name(
    name: str, fits: tuple[str, ...], differs: tuple[str, ...]
) -> None:
    assert all(gpu_names.is_of_type(name, kind) for kind in fits)
    assert not any(gpu_names.is_of_type(name, kind) for kind in differs)
