"""What the text of a user's file shows of its precision."""

from __future__ import annotations

import pytest

from amp_launcher.around import script_source
from amp_launcher.around.script_source import Source


@pytest.mark.parametrize(
    ("imports", "call", "library", "overrides"),
    [
        ("from lightning import Trainer", "Trainer(max_epochs=1)", "lightning", False),
        ("import lightning as L", "L.Trainer(max_epochs=1)", "lightning", False),
        ("import lightning.pytorch as pl", "pl.Trainer()", "lightning", False),
        ("import lightning.pytorch", "lightning.pytorch.Trainer()", "lightning", False),
        ("from lightning import pytorch as pl", "pl.Trainer(**settings)", "lightning", False),
        ("import pytorch_lightning as pl", "Trainer(precision=16)", "", False),
        ("from pytorch_lightning import Trainer", "Trainer(precision=16)", "lightning", True),
        ("from lightning.fabric import Fabric", "Fabric(precision='32-true')", "lightning", False),
        ("from lightning import Trainer", "Trainer(precision=a.precision)", "lightning", True),
        ("from lightning import Trainer", "Trainer(callbacks=[Printer(precision=3)])", "lightning", False),
        ("from lightning import LightningModule", "", "", False),
        ("from accelerate import Accelerator", "Accelerator()", "accelerate", False),
        ("from accelerate import Accelerator", "Accelerator(mixed_precision=None)", "accelerate", False),
        ("from accelerate import Accelerator", "Accelerator(mixed_precision=a.precision)", "accelerate", False),
        ("from accelerate import Accelerator", "Accelerator(mixed_precision='no')", "accelerate", True),
        ("from transformers import BertModel", "", "", False),
        ("from transformers import Trainer", "Trainer(args=TrainingArguments('x'))", "transformers", False),
        ("from transformers import TrainingArguments", "TrainingArguments(**settings)", "transformers", False),
        ("from sentence_transformers import SparseEncoderTrainer as T", "T(model)", "transformers", False),
        ("from sentence_transformers import SentenceTransformer", "SentenceTransformer('x')", "", False),
        ("import trl", "trl.SFTTrainer('x')", "transformers", False),
        ("from transformers import A\nfrom accelerate import Accelerator", "Accelerator()", "accelerate", False),
        ("from .lightning import Trainer", "Trainer()", "", False),
        ("from mine import Trainer", "Trainer(precision=16)", "", False),
    ],
)
def test_a_scripts_text_shows_its_training_library_and_the_call_that_overrides_its_switch(
    imports, call, library, overrides
):
    source = script_source.read(f"{imports}\n{call}")
    assert (source.library, source.decided) == (library, call if overrides else "")


def test_lightnings_command_line_overrides_the_switch_and_a_module_may_be_named_before_a_call():
    cli = script_source.read("from lightning.pytorch.cli import LightningCLI\nLightningCLI(Net)")
    assert (cli.library, cli.decided) == ("lightning", "LightningCLI")
    assert script_source.read("import accelerate as a\na.Accelerator(mixed_precision='no')").decided == (
        "Accelerator(mixed_precision='no')"
    )


@pytest.mark.parametrize(
    ("text", "asks", "fits"),
    [
        ("p = Precision.from_env()", True, False),
        ("from amp_launcher.torch import Precision as P\np = P('o2')", True, False),
        ("import amp_launcher.torch\np = amp_launcher.torch.Precision()", True, False),
        ("from amp_launcher import torch as own\np = own.Precision()", True, False),
        ("from amp_launcher import paddle as own\np = own.Precision()", True, False),
        ("from amp_launcher.paddle import Precision\np = Precision('o1')", True, False),
        (
            "import amp_launcher.job\nfrom torchmetrics import Precision\np = Precision('binary')",
            False,
            False,
        ),
        ("p = precision.Precision.from_env(environ)", True, False),
        ("# Precision.from_env()\nx = 'Precision.from_env()'", False, False),
        ("model.compile(opt)\nmodel.fit(data)", False, True),
        ("model.compile(opt)\nwith tf.GradientTape() as tape: pass\nmodel.fit(data)", False, False),
        ("model.compile(opt, auto_scale_loss=False)\nmodel.fit(data)", False, False),
        ("class M(Model):\n  def train_step(self, data): pass\nm.compile()\nm.fit()", False, False),
        ("re.compile('x')", False, False),
        ("print 'python 2'", False, False),
        ("x = '\0'", False, False),
    ],
)
def test_the_text_of_a_script_tells_who_applies_its_precision_and_who_scales_its_loss(text, asks, fits):
    assert script_source.read(text) == Source(asks=asks, fits=fits)


def test_the_text_of_a_script_in_paddle_tells_whether_it_builds_static_graphs():
    assert script_source.read("import paddle\npaddle.enable_static()").static
    assert not script_source.read("import paddle\npaddle.disable_static()  # not enable_static()").static


@pytest.mark.parametrize(
    "text",
    [
        "from amp_launcher.torch.libraries.lightning_precision import LightningPrecision as P\nTrainer(plugins=P())",
        "from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer\nPrecisionTrainer(net)",
        "from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer\nclass T(PrecisionTrainer, S): 0",
        "from amp_launcher.torch.libraries import lightning_precision\nlightning_precision.LightningPrecision('o2')",
    ],
)
def test_a_plugin_of_ours_makes_a_precision(text):
    assert script_source.read(text).asks


def test_a_text_that_is_nested_too_deeply_is_no_python_and_the_reason_is_told():
    with pytest.raises(SyntaxError, match=r"nested|recursion"):
        script_source.parsed("-" * 100_000 + "1")
