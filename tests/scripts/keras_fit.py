"""Handwritten digits by Keras's compile and fit, with its BackupAndRestore."""

import argparse
import signal

import keras
from sklearn.datasets import load_digits


class StopOnSigterm(keras.callbacks.Callback):
    """Ends training after the epoch in which the job is asked to stop, once BackupAndRestore has saved it."""

    def on_train_begin(self, logs=None):
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, signum, frame):
        self.model.stop_training = True


class Print(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} begins at step {int(self.model.optimizer.iterations)}", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        print(f"step {int(self.model.optimizer.iterations)} loss {logs['loss']:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    digits = load_digits()
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(args.lr),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        digits.data / 16,
        digits.target,
        batch_size=64,
        epochs=args.epochs,
        verbose=0,
        callbacks=[
            Print(),
            StopOnSigterm(),
            keras.callbacks.BackupAndRestore(f"{args.out}/backup", delete_checkpoint=False),
            keras.callbacks.CSVLogger(f"{args.out}-log.csv", append=True),
        ],
    )


if __name__ == "__main__":
    main()
