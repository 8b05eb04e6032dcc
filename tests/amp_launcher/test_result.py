"""result.json."""

from __future__ import annotations

import json
import math

from amp_launcher import result
from amp_launcher.result import Result


def some(**values: object) -> Result:
    known: dict = {key: {} for key in ("requested", "effective", "observed", "throughput", "eval", "loss_scale")}
    known |= {"run": "r", "status": "done", "attempts": 1, "framework": "torch", "recipe": "mnist", "mechanism": "m"}
    known |= {"peak_memory_bytes": 1, "loss": {"first": 1.0, "last": 0.5}, "updates": {}, "epochs": 1, "steps": 2}
    known |= {"wall_seconds": 1.0, "world_size": 1, "determinism": "exact", "resumed_from": None}
    return Result(**{**known, **values})


def test_every_field_of_the_schema_is_there(tmp_path):
    result.write(tmp_path / "result.json", some())
    written = json.loads((tmp_path / "result.json").read_text())
    assert set(written) == {
        *("schema", "run", "status", "reason", "attempts", "framework", "recipe", "mechanism", "requested"),
        *(
            "effective",
            "observed",
            "throughput",
            "peak_memory_bytes",
            "startup_memory_bytes",
            "loss",
            "eval",
            "logged",
            "loss_scale",
            "updates",
        ),
        *("epochs", "steps", "wall_seconds", "world_size", "determinism", "resumed_from", "profile", "versions"),
        *("digests", "hardware", "verify"),
    }


def test_nan_is_written_as_null_and_named(tmp_path):
    result.write(tmp_path / "result.json", some(loss={"first": 1.0, "last": math.nan}))
    text = (tmp_path / "result.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["loss"]["last"] is None
    assert json.loads(text)["nonfinite"] == ["loss.last"]
