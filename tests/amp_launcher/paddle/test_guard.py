"""An error anywhere in the observer makes the verdict unknown, and never reaches the script."""

from __future__ import annotations

from tests.amp_launcher.raising import faults

assert faults
LAYERS = """
import paddle
from paddle import nn
paddle.seed(0)
net, inputs = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), paddle.rand([8, 4])
adam = paddle.optimizer.Adam(parameters=net.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=4.0)
for step in range(25):
    scaler.scale(net(inputs).square().mean()).backward()
    scaler.step(adam)
    scaler.update()
    adam.clear_grad()
print("weights", [value.hex() for weight in net.parameters() for value in weight.flatten().tolist()])
"""
STATIC = """
import paddle
import numpy
paddle.enable_static()
main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    ones = paddle.static.data("ones", [2, 2])
    doubled = ones * 2
executor = paddle.static.Executor()
print("weights", executor.run(main, {"ones": numpy.ones((2, 2), "float32")}, [doubled]))
paddle.disable_static()
"""
SCRIPTS = {LAYERS: "proved", STATIC: "unknown"}


def test_an_error_in_the_observer_leaves_the_script_alone_and_is_named_in_the_verdict(faults):
    assert not (found := faults("paddle", SCRIPTS, ("observe/",), ["call"])), "\n".join(found)
