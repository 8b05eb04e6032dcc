"""`python -m amp_launcher.torch.export run=FOLDER file=FILE [step=N] [overwrite=true]`: a run's weights as safetensors.

The file has every parameter by its name in the model, float32 masters where there are any, and every buffer that is
saved; a plain model takes it by `load_state_dict(safetensors.torch.load_file(FILE))`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from amp_launcher.loop import checkpoint
from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.run_folder import naming, sync_folder
from amp_launcher.torch import resharding
from amp_launcher.torch.state import read
from amp_launcher.torch.trained import masters_of
from amp_launcher.typed import SettingsError
from amp_launcher.values import from_text

KEYS = ("run", "file", "step", "overwrite")
INSTALL = f"{sys.executable} has no safetensors: pip install 'amp-launcher[export]' there, or pip install safetensors"


def main(words: Sequence[str]) -> int:
    """Exit codes: 0 done, 1 the file can't be written or read, 2 the request is wrong, 130 interrupted."""
    try:
        values = dict(_split(word) for word in words)
        for key in ("run", "file"):
            if not values.get(key):
                raise SettingsError(f"export needs run=FOLDER and file=FILE, and {key}= is missing", key)
        step = from_text(values["step"], int, "step") if "step" in values else None
        overwrite = bool(from_text(values.get("overwrite", "false"), bool, "overwrite"))
        run, file = Path(values["run"]), Path(values["file"])
        _check(file, overwrite)
        saved = find(run, step)
        weights = weights_of(saved)
        facts = {"format": "pt", "run": run.resolve().name, "step": str(saved.step)}
        write(file, weights, facts, overwrite)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.strerror or error}: {error.filename or values.get('file')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    count = sum(tensor.numel() for tensor in weights.values())
    print(f"step {saved.step} of {run.resolve().name}: {len(weights)} tensors, {count:,} values, in {file}")
    return 0


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or key not in KEYS:
        raise SettingsError(f"export takes {', '.join(f'{known}=' for known in KEYS)}, not {word}", key)
    return key, value


def _check(file: Path, overwrite: bool) -> None:
    try:
        import safetensors.torch  # noqa: F401 (before a large checkpoint is read)
    except ModuleNotFoundError:
        raise SettingsError(INSTALL, "file") from None
    if not file.parent.is_dir():
        raise SettingsError(f"{file}: there is no folder {file.parent}", "file")
    if file.is_dir():
        raise SettingsError(f"{file} is a folder; name a file in it", "file")
    if file.exists() and not overwrite:
        raise _there(file)


def _there(file: Path) -> SettingsError:
    return SettingsError(f"{file} is there already; name another file, or say overwrite=true", "file")


def find(run: Path, step: int | None) -> Checkpoint:
    """The newest intact checkpoint of a run, or that of `step`. Raises `SettingsError` where there is none of torch."""
    folder = run / "checkpoints"
    broken: list[str] = []
    saved = checkpoint.newest(folder, broken.append, step)
    if saved is None:
        there = ", ".join(map(str, checkpoint.steps(folder)))
        if broken:
            raise SettingsError("; ".join(broken), "step")
        if not there:
            raise SettingsError(
                f"{run} has no checkpoint yet; one is saved every checkpoint.every= steps, and at the end", "run"
            )
        raise SettingsError(f"{run} has no checkpoint of step {step}; it has those of {there}", "step")
    for problem in broken:
        print(f"warning: {problem}", file=sys.stderr)
    framework = _framework(saved.manifest)
    if framework != "torch":
        raise SettingsError(f"{run} is framework={framework}, and export is for torch", "run")
    return saved


def _framework(manifest: Mapping[str, Any]) -> str:
    settings = manifest.get("settings")
    return str(settings.get("framework", "unknown")) if isinstance(settings, dict) else "unknown"


def weights_of(saved: Checkpoint) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of a checkpoint by name, in memory of its own; those with a fraction in float32.

    A weight that several names share is there by each of them. Raises `SettingsError` for a state that can't be read.
    """
    try:
        state = resharding.state_of(saved, read(saved.state), only="model/")
    except ValueError as error:
        raise SettingsError(f"{saved.path} can't be exported: {error}", "run") from None
    masters = masters_of(state)
    weights = {name: masters.get(name, weight) for name, weight in state["model"].items()}
    weights |= {name: weights[first] for name, first in state["tied"].items()}
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
        if isinstance(tensor, torch.Tensor)
    }


def write(file: Path, weights: Mapping[str, torch.Tensor], facts: Mapping[str, str], overwrite: bool) -> None:
    """Write aside, flush and rename, so that the file is whole or not there. Raises `OSError`, and `SettingsError` for
    a file that came to be meanwhile."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with naming(file):
            try:
                save_file(dict(weights), aside, metadata=dict(facts))
            except SafetensorError as error:  # which is all that it says of a full disk
                raise OSError(errno.EIO, str(error)) from None
            with open(aside, "rb+") as written:
                os.fsync(written.fileno())
            if not overwrite and file.exists():  # since the first check
                raise _there(file)
            os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(file.parent)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)  # so that no unfinished file stays
    sys.exit(main(sys.argv[1:]))
