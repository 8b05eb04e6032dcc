from __future__ import annotations

from tests.amp_launcher import forking

forking.preload(
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch.profiler._cupti_monitor",
    "amp_launcher.torch.autocast_around",
    "amp_launcher.torch.hardware",
    "amp_launcher.torch.observe.script_observer",
    "amp_launcher.torch.precision",
    "amp_launcher.torch.profiling",
    "amp_launcher.tensorflow.observe.step_counter",
    "amp_launcher.around.wrap",
    "tests.guests.running",
    "tests.guests.state",
)
