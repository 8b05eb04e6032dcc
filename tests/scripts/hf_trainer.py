"""Handwritten digits by a tiny vision transformer in Hugging Face's Trainer."""

import sys
from dataclasses import dataclass, field

import torch
from sklearn.datasets import load_digits
from transformers import (
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    layers: int = field(default=1, metadata={"help": "hidden layers"})
    dropout: float = field(default=0.1, metadata={"help": "of the layers and of attention"})


class Digits(torch.utils.data.Dataset):
    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
        self.labels = torch.tensor(digits.target)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class Print(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print(f"begins at step {state.global_step}", flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main():
    model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=model_args.layers,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=model_args.dropout,
        attention_probs_dropout_prob=model_args.dropout,
        num_labels=10,
    )
    checkpoint = training_args.resume_from_checkpoint
    if checkpoint == "last":
        checkpoint = get_last_checkpoint(training_args.output_dir)
    trainer = Trainer(
        model=ViTForImageClassification(config), args=training_args, train_dataset=Digits(), callbacks=[Print()]
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    sys.exit(main())
