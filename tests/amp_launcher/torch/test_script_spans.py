"""Steps of a script that no forward of a module shows, and those of a thread, are observed all the same."""

from __future__ import annotations

import _thread
import builtins
import queue
import textwrap
import threading

import pytest

from amp_launcher.torch.observe import roles, script_observer
from tests.amp_launcher.torch.scripts import HEAD, in_process, loop
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

NO_MODULE = """
weight, last = (torch.randn(32, width, requires_grad=True) for width in (32, 1))
optimizer = torch.optim.Adam([weight, last], lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    ((inputs @ weight).relu() @ last - targets).square().mean().backward()
    optimizer.step()
"""
IN_A_THREAD = f"""
import threading
def train():
{textwrap.indent(loop(6), "    ")}
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
COMPILED = "net.compile(backend='aot_eager')\n" + loop(6)
IN_BACKWARD = """
optimizers = {weight: torch.optim.Adam([weight]) for weight in net.parameters()}
for weight in net.parameters():
    weight.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
for step in range(40):
    for weight in net.parameters():
        weight.grad = None
    (net(inputs) - targets).square().mean().backward()
"""
COMPILED_IN_BACKWARD = "net.compile(backend='aot_eager')\n" + IN_BACKWARD
IN_A_THREAD_OF_BACKWARD = COMPILED_IN_BACKWARD.replace(
    "optimizers[weight].step()", "in_thread(optimizers[weight].step)"
)
CLOSURE = """
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=12)
def closure():
    optimizer.zero_grad()
    loss = (net(inputs) ** 2).mean()
    loss.backward()
    return loss
for _ in range(2):
    optimizer.step(closure)
"""
AFTER_ANOTHER = """
inputs = nn.Sequential(nn.Flatten())(inputs)
for step in range(12):
    ((net(inputs) - targets) ** 2).mean().backward()
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
"""
FRESH = """
for each in range(12):
    net = nn.Linear(32, 1)
    net(inputs).mean().backward()
"""
PRINTED = f"torch.manual_seed(0)\n{CLOSURE}".replace(
    "optimizer.step(closure)", "print('loss', optimizer.step(closure).item())"
)
HALF = "with torch.autocast('cpu', torch.bfloat16): "


@pytest.mark.parametrize("text", [NO_MODULE, IN_A_THREAD, COMPILED], ids=["no module", "thread", "compiled"])
def test_steps_that_no_forward_shows_are_judged(run_script, tmp_path, text):
    run = in_process(run_script, tmp_path)
    ended = run(HEAD + text, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]
    assert "at step 2 on 1 rank" in ended.result["observed"]["why"]
    head = HEAD.replace("    (net(", f"    {HALF}(net(")
    half = text.replace("    ((inputs", f"    {HALF}((inputs") if text is NO_MODULE else text
    ended = run(head + half, "amp=o0", "require_proof=false")
    assert ended.verdict == "contradicted", ended.result["observed"]


@pytest.mark.parametrize("text", [IN_BACKWARD, COMPILED_IN_BACKWARD], ids=["eager", "compiled"])
def test_steps_that_hooks_of_the_weights_take_in_backward_are_judged(run_script, tmp_path, text):
    ended = in_process(run_script, tmp_path)(HEAD + text, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]


def test_hooks_that_run_in_autograds_own_thread_step_for_the_thread_that_called_backward(
    run_script, tmp_path, monkeypatch
):
    """A GPU's part of a backward runs in a thread that Python did not start."""
    steps, ended, began = queue.SimpleQueue(), queue.SimpleQueue(), roles.in_backward

    def run():
        while step := steps.get():
            ended.put(step())

    thread = _thread.start_new_thread(run, ())
    for module in (roles, script_observer):
        monkeypatch.setattr(module, "in_backward", lambda: began() or threading.get_ident() == thread)
    monkeypatch.setattr(builtins, "in_thread", lambda step: steps.put(step) or ended.get(timeout=60), raising=False)
    done = in_process(run_script, tmp_path)(HEAD + IN_A_THREAD_OF_BACKWARD, "amp=o0")
    steps.put(None)
    assert (done.code, done.verdict) == (0, "proved"), done.result["observed"]


def test_evaluations_of_an_optimizers_closure_are_no_steps_by_hand(run_script, tmp_path):
    ended = in_process(run_script, tmp_path)(HEAD + CLOSURE, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]
    assert "at step 1 on 1 rank" in ended.result["observed"]["why"]


@pytest.mark.parametrize(("text", "verdict"), [(AFTER_ANOTHER, "proved"), (FRESH, "unknown")], ids=["steps", "none"])
def test_steps_by_hand_are_of_any_module_whose_weights_are_written_after_a_backward(
    run_script, tmp_path, text, verdict
):
    ended = in_process(run_script, tmp_path)(HEAD + text, "amp=o0")
    assert (ended.code, ended.verdict) == (0, verdict), ended.result["observed"]


def test_a_step_of_too_many_operations_is_given_up_in_the_middle_and_not_observed_again(
    run_script, tmp_path, monkeypatch
):
    start = in_process(run_script, tmp_path)
    whole = start(HEAD + PRINTED, "amp=o0", "require_proof=false")
    monkeypatch.setattr(script_observer, "MOST_OPERATIONS", 50)
    ended = start(HEAD + PRINTED, "amp=o0", "require_proof=false")
    assert (whole.code, ended.code) == (0, 0), ended.err
    assert whole.result["observed"]["verdict"] == "proved"
    assert ended.result["observed"]["verdict"] == "unknown"
    assert ended.result["observed"]["why"] == f"step 3: {script_observer.TOO_MANY}", "the first of this attempt, once"
    assert [line for line in ended.out.splitlines() if "loss " in line] == [
        line for line in whole.out.splitlines() if "loss " in line
    ]


EVALUATED = "\nfor _ in range(200):\n    net(inputs).detach().numpy()\n"
STEPS = loop(6, "Adam(net.parameters())")
BY_HAND = """
for step in range(12):
    gradients()
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
"""
OF_A_FUNCTION = """
of_weights = lambda weights: (torch.func.functional_call(net, weights, (inputs,)) ** 2).mean()
weights = {name: weight.detach() for name, weight in net.named_parameters()}
for _ in range(200):
    slopes = torch.func.grad(of_weights)(weights)
    weights = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
"""
ACCUMULATED = STEPS.replace("    gradients()\n", "    for _ in range(6):\n        gradients()\n")


def _each_step(context: str) -> str:
    """A loop that evaluates after each step."""
    return STEPS + f"    with {context}():\n        for _ in range(200):\n            net(inputs)\n"


LONG = STEPS.replace(
    "    gradients()\n",
    """    value = inputs
    for _ in range(30):
        value = value + 0.01 * net(value)
    (net(value) ** 2).mean().backward()
""",
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (EVALUATED + STEPS, "step 2 "),
        (EVALUATED + BY_HAND, "step 1 "),
        (EVALUATED + ACCUMULATED, "step 1 "),
        (_each_step("torch.no_grad"), "step 1 "),
        (_each_step("torch.inference_mode"), "step 1 "),
        (_each_step("torch.enable_grad"), "step 1 "),
        (OF_A_FUNCTION + STEPS, "step 2 "),
        (LONG, "step 4 "),
    ],
    ids=[
        "before",
        "by hand",
        "accumulated",
        "no_grad",
        "inference_mode",
        "with gradients",
        "torch.func",
        "long forward",
    ],
)
def test_an_evaluation_of_many_operations_is_not_observed_to_its_end(run_script, tmp_path, monkeypatch, text, steps):
    """What a span costs does not grow with what is evaluated or rolled out beside the training in it."""
    monkeypatch.setattr(script_observer, "MOST_IDLE", 50)
    monkeypatch.setattr(script_observer, "MOST_OPERATIONS", 3000)
    ended = in_process(run_script, tmp_path)(HEAD + text, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]
    why = ended.result["observed"]["why"]
    assert f" at {steps}" in why
    assert text is LONG or int(why.partition("; all ")[2].partition(" operations")[0]) < 400
    half = (HEAD + text).replace("    (net(", f"    {HALF}(net(")
    ended = in_process(run_script, tmp_path / "half")(half, "amp=o0", "require_proof=false")
    assert ended.verdict == "contradicted", ended.result["observed"]


COPY = "half = copy.deepcopy(net).bfloat16()\nwith torch.inference_mode():\n    half(inputs.bfloat16())"
ROUNDED = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    net.bfloat16()
    (net(inputs.bfloat16()) ** 2).mean().backward()
    net.float()
    for weight in net.parameters():
        weight.grad = weight.grad.float()
    optimizer.step()
    net.bfloat16()
"""
"""As CLIP is tuned by many: the weights are float32 for the step alone."""


@pytest.mark.parametrize(
    ("text", "words", "verdict"),
    [
        (f"{HEAD}{loop(2)}net.bfloat16()", ["amp=o0"], "proved"),
        (f"import copy\n{HEAD}{loop(2)}{COPY}", ["amp=o0"], "proved"),
        (
            f"{HEAD}net.bfloat16()\ninputs = inputs.bfloat16()\n{loop(2)}net.float()",
            ["amp=o3", "train.precision=script"],
            "proved",
        ),
        (HEAD + ROUNDED, ["amp=o1", "train.precision=script", "require_proof=false"], "contradicted"),
    ],
    ids=["cast", "a copy in inference mode", "cast to float32", "float32 for the step alone"],
)
def test_weights_are_judged_as_they_trained_and_not_as_they_are_saved(run_script, tmp_path, text, words, verdict):
    ended = in_process(run_script, tmp_path)(text, *words)
    assert ended.verdict == verdict, ended.result["observed"]


LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 1)
    def forward(self, inputs):
        return self.last.forward(self.first.forward(inputs).relu())
net = Net()"""
LATER = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(31):
    optimizer.zero_grad()
    net.forward(inputs).square().mean().backward()
    optimizer.step()
for _ in range(3):
    net.last(net.first(inputs))
"""
"""Layers that are called by `forward` while they train, and as modules in an evaluation with gradients."""


def test_what_a_script_calls_after_its_last_step_is_no_change(run_script, tmp_path, monkeypatch):
    monkeypatch.setattr(script_observer.Schedule, "looks", lambda schedule, steps: schedule.spans > 0)
    head = HEAD.replace("net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))", LAYERS)
    ended = in_process(run_script, tmp_path)(head + LATER, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]


@pytest.mark.parametrize("trace", ["trace(norm, rows)", "trace_module(norm, {'forward': rows})"])
def test_a_module_is_traced_in_an_observed_step_as_without_an_observer(run_script, tmp_path, trace):
    """As TensorBoard's `add_graph` does it."""
    traced = f"    gradients()\n    torch.jit.{trace}\n"
    text = "norm, rows = torch.nn.BatchNorm1d(4), torch.randn(8, 4)\n" + STEPS.replace("    gradients()\n", traced)
    ended = in_process(run_script, tmp_path)(HEAD + text, "amp=o0")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.err
