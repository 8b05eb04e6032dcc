"""The GPT recipe: its network, its text, its levels, its resuming."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from amp_launcher.recipes import gpt
from amp_launcher.recipes.data import tokens
from amp_launcher.recipes.data.tokens import Tokens
from amp_launcher.recipes.gpt import GptSettings
from amp_launcher.recipes.gpt import train_torch as trainer
from amp_launcher.settings import Data, Settings
from amp_launcher.torch import loop
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.kept_bytes import kept_bytes
from tests.amp_launcher.torch.trainers import differences, last_state, result, steps

TINY = GptSettings(vocab_size=64, layers=2, width=32, heads=2, context=16)
SMALL = (
    *("train.layers=2", "train.width=32", "train.heads=2", "train.context=16", "train.held_out=4"),
    *("batch=4", "checkpoint.every=0"),
)


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A standard library of 40 small files."""
    folder = tmp_path / "lib"
    (folder / "json" / "tests").mkdir(parents=True)
    (folder / "site-packages").mkdir()
    for number in range(40):
        (folder / "json" / f"m{number:02}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 4)
    for name in ("json/tests/test_m.py", "site-packages/other.py", "_sysconfigdata_x.py", "json/notes.txt"):
        (folder / name).write_text("left out\n" * 100)
    monkeypatch.setattr(tokens, "LIBRARY", folder)
    return folder


def train(folder: Path, *words: str, ends: int = loop.DONE) -> Path:
    by_key = {word.partition("=")[0]: word for word in (*SMALL, *words)}
    assert loop.main("gpt", trainer.train, [*by_key.values(), f"run={folder}"]) == ends
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in steps(folder)]


def write_ids(folder: Path, dtype: str = "uint16", **ids: numpy.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for part in ("train", "val"):
        numpy.asarray(ids.get(part, numpy.arange(400) % 50)).astype(dtype).tofile(folder / f"{part}.bin")
    return folder


@pytest.mark.parametrize("mlp", ["swiglu", "relu2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_launcher_knows_the_networks_matrices(mlp, tied):
    settings = GptSettings(vocab_size=64, layers=2, width=48, heads=2, context=16, mlp=mlp, tied=tied)
    net, known = trainer.Net(settings), gpt.layers(settings)
    built = {name: layer.weight.numel() for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    assert built == {layer.name: layer.weights for layer in known}
    matrices = sum(parameter.numel() for parameter in net.parameters() if parameter.ndim > 1)
    assert matrices - sum(layer.weights for layer in known) == (0 if tied else 64 * 48)


@pytest.mark.parametrize("recompute", ["none", "full"])  # selective recomputation keeps tensors by itself
def test_no_less_is_kept_for_backward_than_the_launcher_reckons_with(recompute):
    settings = GptSettings(vocab_size=64, layers=2, width=32, heads=2, context=16, recompute=recompute)
    net = trainer.Net(settings)

    def of(samples: int) -> int:
        ids = torch.ones(samples, 16, dtype=torch.int64)
        return kept_bytes(lambda: nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten()))

    assert of(4) - of(2) >= 2 * 4 * sum(layer.kept for layer in gpt.layers(settings))


def test_a_token_sees_none_that_comes_after_it_and_knows_how_far_others_are():
    net = trainer.Net(TINY).eval()
    ids = torch.randint(0, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 9] = (ids[0, 9] + 1) % 64
    with torch.no_grad():
        before, after = net(ids), net(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])
    cosine, sine = trainer.rotations(8, 4)
    query, key = torch.randn(1, 4), torch.randn(1, 4)
    turned = trainer.rotated(query.expand(8, 4), cosine, sine) @ trainer.rotated(key.expand(8, 4), cosine, sine).T
    for far in range(8):
        assert torch.diagonal(turned, far).std(correction=0) < 1e-5  # the distance alone counts


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_has_the_same_gradients(recompute):
    torch.manual_seed(0)
    plain, again = trainer.Net(TINY), trainer.Net(dataclasses.replace(TINY, recompute=recompute))
    again.load_state_dict(plain.state_dict())
    for net in (plain, again):
        net(torch.arange(32).reshape(2, 16)).square().mean().backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_tokens_flops_are_palms_formula():
    """By hand: a layer of 12 width^2 weights, two matrices of the MLP and one for the words."""
    settings = GptSettings(vocab_size=1000, layers=3, width=64, heads=2, context=128, mlp="relu2")
    weights = 3 * (4 * 64**2 + 8 * 64**2) + 64 * 1000
    assert gpt.flops_per_token(settings) == 6 * weights + 12 * 3 * 2 * 32 * 128


def test_the_rate_warms_up_and_falls_to_its_share():
    settings = GptSettings(lr=1.0, warmup_steps=10, lr_end=0.1)
    rates = [gpt.learning_rate(settings, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0 and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.55) and 0.1 < rates[99] < 0.102
    assert gpt.learning_rate(settings, 0, 10) == 0.5  # a short run warms up for a fifth of it


def test_the_standard_library_is_split_by_file_and_its_digest_is_of_the_content(library):
    text = tokens.load(Data(name="stdlib"), TINY)
    both = bytes(text.train.ids) + bytes(text.held_out.ids)
    assert b"left out" not in both and both.count(b"def f") == 160
    assert {0, 4} == {bytes(text.held_out.ids).count(b"def f%d(" % number) for number in range(40)}
    assert bytes(text.train.ids).startswith(b"def f0(x)")
    assert text.digest == tokens.load(Data(name="stdlib"), TINY).digest
    (library / "json" / "m39.py").write_text("other\n")
    assert text.digest != tokens.load(Data(name="stdlib"), TINY).digest


def test_a_sample_is_read_by_its_position():
    text = Tokens(ids=numpy.arange(100, dtype=numpy.uint16), context=8)
    assert len(text) == 12
    assert text.samples(numpy.array([[0, 11]])).tolist() == [[list(range(9)), list(range(88, 97))]]


@pytest.mark.parametrize("ids", ["uint16", "uint32"])
def test_files_of_ids_are_trained_on(tmp_path, ids):
    folder = write_ids(tmp_path / "ids", ids)
    words = ("data=tokens", f"data.dir={folder}", f"train.ids={ids}", "train.vocab_size=50")
    record = result(train(tmp_path / "run", *words, "train.bytes_per_token=4", "amp=o0", "steps=2"))
    assert record["eval"]["bits_per_byte"] == pytest.approx(record["eval"]["loss"] / math.log(2) / 4)
    size = (800 if ids == "uint16" else 1600).to_bytes(8, "little")
    content = b"".join(size + (folder / name).read_bytes() for name in ("train.bin", "val.bin"))
    assert record["digests"]["data"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert "bits_per_byte" not in result(train(tmp_path / "other", *words, "amp=o0", "steps=1"))["eval"]


IDS = numpy.arange(400) % 50
IDS[123] = 0
BEYOND = IDS.copy()
BEYOND[123] = 77
FILES: dict[str, dict[str, bytes | None]] = {
    "train.bin has 801 bytes, which is not a whole number of train.ids=uint16 of 2 bytes": {"train": bytes(801)},
    "train.bin is empty; it should hold token ids of train.ids=uint16": {"train": b""},
    "val.bin: id 77 at position 123 is beyond train.vocab_size=50; say the vocabulary's size": {
        "val": BEYOND.astype("uint16").tobytes()
    },
    "val.bin can't be read: No such file or directory": {"val": None},
    "val.bin has 10 tokens, and a sample of train.context=16 takes 17; say a smaller train.context": {"val": bytes(20)},
    "val.bin: every second id is 0, as where ids of 4 bytes are read as ids of 2; say train.ids=uint32": {
        "val": IDS.astype("uint32").tobytes()
    },
}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        *((message, ()) for message in FILES),
        ("is beyond train.vocab_size=50; say the vocabulary's size, or is train.ids=uint32", ("train.ids=uint32",)),
        ("batch=40 is more than the 24 samples of data=tokens", ("batch=40",)),
    ],
)
def test_a_broken_file_of_ids_is_refused_before_anything_starts(tmp_path, capsys, message, words):
    folder = write_ids(tmp_path / "ids", val=IDS)
    for name, content in FILES.get(message, {}).items():
        (folder / f"{name}.bin").unlink()
        if content is not None:
            (folder / f"{name}.bin").write_bytes(content)
    job = ("data=tokens", f"data.dir={folder}", "train.vocab_size=50", *words, "steps=1")
    train(tmp_path / "run", *job, ends=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [(), ("train.recompute=full", "train.tied=false"), ("train.recompute=selective",)])
def test_every_level_is_proved_and_its_losses_are_those_of_float32(tmp_path, library, words):
    plain: list[float] = []
    for level in ("o0", "o1", "o2", "o3") if not words else ("o0", "o2"):
        own = losses(train(tmp_path / level, f"amp={level}", "steps=3", *words))
        observed = result(tmp_path / level)["observed"]
        assert (observed["verdict"], observed["half_flop_share"]) == ("proved", level != "o0"), observed
        plain = plain or own
        assert own == pytest.approx(plain, rel=0.02)
    dtypes = result(tmp_path / "o2")["observed"]["param_dtypes"]
    assert dtypes["float32"] == 5 * 32 and dtypes["bfloat16"] > 1000  # the norms alone are float32


@pytest.mark.slow
@pytest.mark.usefixtures("calls_for_kernels")
@pytest.mark.parametrize(("level", "recompute"), [("o1", "selective"), ("o2", "full")])
def test_compiled_code_is_proved_too(tmp_path, library, level, recompute):
    words = ("compile=true", f"train.recompute={recompute}", "train.layers=1")
    record = result(train(tmp_path, f"amp={level}", "steps=2", *words))
    assert (record["observed"]["verdict"], record["observed"]["half_flop_share"]) == ("proved", 1)
    assert record["effective"]["compile"] is True


def test_an_interrupted_run_resumes_bit_by_bit_and_on_the_same_text_alone(tmp_path, capsys, library):
    words = ("amp=o2", "accumulate=2", "steps=6")
    train(tmp_path / "one", *words)
    for ends in (85, 85, 0):
        train(tmp_path / "parts", *words, "checkpoint.stop_every=2", ends=ends)
    one, parts = last_state(tmp_path / "one"), last_state(tmp_path / "parts")
    for key in ("model", "optimizers", "precision"):
        assert differences(one[key], parts[key], key) == []
    assert losses(tmp_path / "one") == losses(tmp_path / "parts")
    before = result(tmp_path / "one")
    assert (before["throughput"]["unit"], before["throughput"]["mfu"]) == ("tokens/s", None)
    assert before["throughput"]["flops_per_token"] > 0
    assert 4 < before["eval"]["bits_per_byte"] < 8
    (library / "json" / "m00.py").write_text("pass\n" * 30)
    train(tmp_path / "one", "amp=o2", "accumulate=2", "steps=7", ends=2)
    assert f"not {before['digests']['data']}; give it that data" in capsys.readouterr().err


def test_a_run_on_files_of_ids_resumes_on_the_same_ids_in_any_folder(tmp_path, capsys):
    folder, moved = write_ids(tmp_path / "ids"), tmp_path / "moved"
    words = ("data=tokens", "train.vocab_size=50", "amp=o0")
    train(tmp_path / "run", *words, f"data.dir={folder}", "steps=1")
    folder.rename(moved)
    train(tmp_path / "run", *words, f"data.dir={moved}", "steps=2")
    write_ids(moved, val=numpy.arange(400) % 49)
    train(tmp_path / "run", *words, f"data.dir={moved}", "steps=3", ends=2)
    assert "give it that data" in capsys.readouterr().err.splitlines()[-1]


def test_matrices_decay_and_norms_do_not(tmp_path, library, monkeypatch):
    made = []
    real = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **options: made.append(real(*args, **options)) or made[-1])
    train(tmp_path, "amp=o0", "steps=1")
    decayed, norms = made[0].param_groups
    assert (decayed["weight_decay"], norms["weight_decay"]) == (0.1, 0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert len(norms["params"]) == 5


def test_bytes_need_a_vocabulary_of_256():
    train = GptSettings(vocab_size=100)
    with pytest.raises(SettingsError, match=r"train.vocab_size=100 with data=stdlib, whose tokens are bytes"):
        gpt.check_data(Settings(recipe="gpt", train=train, data=Data(name="stdlib")))
    gpt.check_data(Settings(recipe="gpt", train=train, data=Data(name="tokens")))


@pytest.mark.slow
def test_it_learns_and_half_precision_learns_as_much(tmp_path):
    """From the real standard library, in 40 steps. A byte drawn from how often each one occurs takes 4.68 bits."""
    words = ("train.context=64", "batch=8", "steps=40", "train.lr=0.02", "train.held_out=32", "train.warmup_steps=5")
    single, half = (result(train(tmp_path / level, f"amp={level}", *words))["eval"] for level in ("o0", "o2"))
    assert single["bits_per_byte"] < 4.4
    assert half["loss"] == pytest.approx(single["loss"], rel=0.02)
