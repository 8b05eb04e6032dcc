"""An error anywhere in the observer makes the verdict unknown, and never reaches the script."""

from __future__ import annotations

from tests.amp_launcher.raising import faults

assert faults
PARTS = (
    *("dispatch_observer", "forward_hook", "observed_thread", "outside", "script_observer", "span", "step_counter"),
    *("step_observer", "watch"),
)
SCRIPT = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
inputs = torch.randn(8, 4)
optimizer = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(net(inputs).square().mean()).backward()
    torch.jit.trace(net, inputs)
    scaler.step(optimizer)
    scaler.update()
weight = torch.nn.Parameter(torch.ones(4, 4))
optimizer = torch.optim.SGD([weight], lr=0.01)
for step in range(27):
    optimizer.zero_grad()
    (inputs @ weight).square().mean().backward()
    optimizer.step()
torch.nn.modules.module._has_any_global_hook()  # as a call of a compiled module
print("weights", [value.hex() for value in (*net.weight.flatten().tolist(), *weight.flatten().tolist())])
"""


def test_an_error_in_the_observer_leaves_the_script_alone_and_is_named_in_the_verdict(faults):
    files = ("profiling.py", *(f"observe/{name}.py" for name in PARTS))
    assert not (found := faults("torch", {SCRIPT: "proved"}, files)), "\n".join(found)
