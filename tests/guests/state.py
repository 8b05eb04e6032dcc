"""What a guest leaves: a digest of each of its globals, and the state of what it could have changed."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import random
import sys
from typing import Any

PATH = "GUEST_STATE"
"""The variable with the file that it is written to."""
DEEP = 6
"""Nesting of lists, dictionaries and objects up to which they are looked into."""


def nothing() -> Any:
    """A context that does nothing."""
    return contextlib.nullcontext()


def write_at_exit(variables: dict[str, Any]) -> None:
    """Write the state of these globals when the interpreter ends, after the script's own functions for that."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and _write(dict(variables)))


def _write(variables: dict[str, Any]) -> None:
    shown = {f"global {name}": _shown(value) for name, value in variables.items() if not name.startswith("__")}
    with open(os.environ[PATH], "w") as file:
        json.dump({**{name: value for name, value in shown.items() if value}, **_surroundings()}, file)


def _surroundings() -> dict[str, str]:
    found = {"random": _hash(repr(random.getstate()).encode())}
    if numpy := sys.modules.get("numpy"):
        found["numpy.random"] = _hash(repr(numpy.random.get_state()).encode())
    if torch := sys.modules.get("torch"):
        found["torch.random"] = _shown(torch.get_rng_state())
        looked_at: dict[str, Any] = {
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "grad mode": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "autocast's cache": torch.is_autocast_cache_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
        }
        for name, read in (
            ("float32_matmul_precision", torch.get_float32_matmul_precision),
            ("matmul.allow_tf32", lambda: torch.backends.cuda.matmul.allow_tf32),
            ("cudnn.allow_tf32", lambda: torch.backends.cudnn.allow_tf32),
            ("fp32_precision", lambda: torch.backends.fp32_precision),
            ("matmul.fp32_precision", lambda: torch.backends.cuda.matmul.fp32_precision),
            ("conv.fp32_precision", lambda: torch.backends.cudnn.conv.fp32_precision),
            ("mkldnn.fp32_precision", lambda: torch.backends.mkldnn.matmul.fp32_precision),
        ):
            try:
                looked_at[name] = read()
            except (RuntimeError, AttributeError, AssertionError) as error:  # older torch has no such switch
                looked_at[name] = str(error)
        found |= {name: str(value) for name, value in looked_at.items()}
    return found


def _shown(value: Any, depth: int = 0) -> str:
    """A text that is equal for equal values; empty for what has none."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return repr(value)[:500]
    if depth > DEEP or isinstance(value, type):
        return ""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_shown(item, depth + 1) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_shown(item, depth + 1)}' for key, item in value.items())}}}"
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy and isinstance(value, (numpy.ndarray, numpy.generic)):
        return f"{value.dtype}{value.shape}:{_hash(value.tobytes())}"
    if torch and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value)
    if torch and isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return str(value)
    if hasattr(value, "state_dict") and not isinstance(value, type):
        gradients = [weight.grad for weight in value.parameters()] if hasattr(value, "parameters") else []
        return _shown([value.state_dict(), gradients], depth + 1)
    if hasattr(value, "numpy") and hasattr(value, "dtype"):  # a variable of TensorFlow, a tensor of Paddle
        with contextlib.suppress(NotImplementedError):  # in a graph
            return f"{value.dtype}:{_shown(value.numpy(), depth + 1)}"
    return ""


def _of_tensor(torch: Any, value: Any) -> str:
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            whole = value.detach().to_dense() if value.layout != torch.strided else value.detach()
            data = bytes(whole.cpu().contiguous().view(-1).view(torch.uint8).tolist()) if whole.numel() else b""
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):  # without memory of its own
        return f"{type(value).__name__} {value.dtype}{tuple(value.shape)}"
    return f"{type(value).__name__} {value.dtype}{tuple(value.shape)}:{_hash(data)}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
