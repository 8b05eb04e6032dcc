"""The wrapper around a script, after the TF32 switches were set as a run on a GPU sets them: TF32=on or off."""

from __future__ import annotations

import os
import runpy

from amp_launcher.torch.precision.tf32 import switch_tf32

switch_tf32(os.environ["TF32"] == "on")
runpy.run_module("amp_launcher.torch.script", run_name="__main__")
