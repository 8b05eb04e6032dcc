"""What the blocks of Python in README and docs take for granted: the reader's model, data and loop."""

TORCH = """
import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

if not distributed.is_initialized():
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
model = torch.nn.Linear(8, 2)
batches = [(torch.randn(4, 8), torch.tensor([0, 1, 0, 1]))] * 2


def train(batch=None, lr=0.1):
    return torch.tensor(lr)
"""
OUTPUT = (
    TORCH
    + """
from types import SimpleNamespace


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, inputs, labels):
        return SimpleNamespace(loss=cross_entropy(self.layer(inputs), labels))


model, loader = Model(), [dict(zip(("inputs", "labels"), batch)) for batch in batches]
"""
)
TENSORFLOW = """
import keras
import tensorflow as tf

make_model = lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
inputs, labels = tf.ones((4, 8)), tf.constant([0, 1, 0, 1])
"""
PADDLE = """
import paddle
from paddle.nn.functional import cross_entropy

model = paddle.nn.Linear(8, 2)
batches = [(paddle.randn([4, 8]), paddle.to_tensor([0, 1, 0, 1]))] * 2
"""
LIGHTNING = "from lightning import Trainer\n"
TRAINER = """
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16, vocab_size=9)
model = BertForSequenceClassification(BertConfig(**sizes))
args = TrainingArguments("out", use_cpu=True, report_to=[])
data = [{"input_ids": [1, 2], "labels": 0}]
"""
ACCELERATE = "import torch\nfrom accelerate import Accelerator\n\nloss, step = torch.tensor(1.0), 1\n"
LOGGED = "import torch\n\nstep, loss, batch, lr, perplexity = 1, 0.5, [1, 2], 0.1, 1.6\n"
FUNCTION = "loss = 0.5\ntrain = lambda lr: lr\n"

GIVEN = [
    ("model(**batch)", OUTPUT),
    ("amp_launcher.torch import Precision", TORCH),
    ("amp_launcher.tensorflow", TENSORFLOW),
    ("amp_launcher.paddle", PADDLE),
    ("LightningPrecision", LIGHTNING),
    ("PrecisionTrainer", TRAINER),
    ("JobTracker", ACCELERATE),
    ("perplexity", LOGGED),
    ("job.checkpoint_dir", TORCH),
    ("executor.submit(train", "loss = 0.5\n"),
    ("submit(train", FUNCTION),
]
"""Words of a block, and what stands before it; the first that are in it count."""
AFTER = {"@tf.function": "train(inputs, labels)\n"}


def program(text: str) -> str:
    """A block with what it takes for granted, and with a call of what it only defines."""
    given = next((given for words, given in GIVEN if words in text), "")
    return given + text + "\n" + "".join(call for words, call in AFTER.items() if words in text)
