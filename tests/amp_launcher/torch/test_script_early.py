"""A user's script in torch is judged while it runs, and ended where no later step can prove its mode."""

from __future__ import annotations

import pytest

from amp_launcher.around.child_processes import RANKS
from tests.amp_launcher.torch.scripts import HEAD, PLAIN, in_process
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script
LONG = PLAIN.replace("range(30)", "range(1000)").replace(
    "    optimizer.step()", "    optimizer.step()\n    print('did step', step + 1, flush=True)"
)
WRAPPED = "def train():\n" + "".join(f"    {line}\n" for line in LONG.splitlines())


@pytest.fixture
def run(run_script, tmp_path):
    return in_process(run_script, tmp_path)


IN_A_THREAD = """
import threading
{before}
def train():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        optimizer.zero_grad()
        ((net(inputs) - targets) ** 2).mean().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(("level", "verdict"), [("o1", "proved"), ("o3", "contradicted")])
def test_training_in_a_thread_is_judged_and_ends_no_script(run, level, verdict):
    ended = run(HEAD + IN_A_THREAD.format(before=""), f"amp={level}", *(["train.precision=script"] * (level == "o3")))
    assert (ended.verdict, len(ended.steps)) == (verdict, 12), ended.err


def test_training_in_a_thread_after_a_forward_of_the_main_one_is_unknown_and_warned_of(run):
    text = HEAD + IN_A_THREAD.format(before="net(inputs)")
    ended = run(text, "amp=o1", "require_proof=true")
    reason = "no optimizer step was taken in the thread that is observed"
    assert (ended.code, ended.verdict) == (1, "unknown")
    assert f"{reason}, the first that called the model" in ended.result["observed"]["why"]
    (warning,) = [line for line in ended.err.splitlines() if "warning" in line]
    assert warning.startswith(f"script: warning: amp=o1 can't be proved: {reason}")
    assert warning.endswith("it continues, and the run fails at its end (require_proof=true)")
    ended = run(text, "amp=o1")
    assert (ended.code, ended.verdict) == (0, "unknown")
    assert ended.err.count("took a step; it continues, and ends without a proof") == 1
    assert RANKS not in ended.result["observed"]["why"], "it is one of no ranks"


def test_a_script_whose_own_autocast_is_off_is_told_how_to_switch_it_on(run):
    off = "with torch.autocast('cpu', enabled=False): loss = ((net(inputs) - targets) ** 2).mean()"
    ended = run(PLAIN.replace("loss = ((net(inputs) - targets) ** 2).mean()", off), "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted")
    assert "in an autocast of its own that is off" in ended.err and "say train.precision=script" in ended.err


def test_a_script_that_makes_its_precision_only_sometimes_is_told_who_applies_the_mode(run):
    some = "from amp_launcher.torch import Precision\nif len(sys.argv) > 1:\n    precision = Precision()\noptimizer = "
    text = "import sys\n" + PLAIN.replace("optimizer = ", some, 1)
    ended = run(text, "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted")
    assert "it made none" in ended.err and "train.precision=launcher" in ended.err
    assert run(text, "amp=o1", "train.precision=launcher").verdict == "proved"


BY_WEIGHTS = """
class Late(nn.Module):
    def forward(self, x):
        return net[2](net[1](x @ net[0].weight.T))
def of_weights(x):
    return torch.relu(x @ net[0].weight.T) @ net[2].weight.T
class Float32(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return net[2](net[1](x @ net[0].weight.T))
optimizer = """


@pytest.mark.parametrize(("forward", "advised"), [("Late().forward", True), ("of_weights", True), ("Float32()", False)])
def test_a_step_that_computes_before_it_calls_a_module_is_told_where_autocast_begins(run, forward, advised):
    text = PLAIN.replace("(net(inputs)", f"({forward}(inputs)").replace("optimizer = ", BY_WEIGHTS, 1)
    ended = run(text, "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted")
    assert ("autocast begins where a step calls its first module" in ended.err) == advised


CASTS = """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.ones(net[2].out_features))
    def forward(self, x):
        self.W.data = self.W.data.to(x.dtype)
        return x * self.W
head = Head()
of_head = torch.optim.SGD(head.parameters(), lr=0.001)
optimizer = """


def test_a_loss_that_casts_its_own_weights_under_a_second_optimizer_is_told_so(run):
    text = PLAIN.replace("(net(inputs)", "(head(net(inputs))").replace("optimizer = ", CASTS, 1)
    ended = run(text.replace("optimizer.step()", "optimizer.step(); of_head.step()"), "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted")
    assert "a module that casts its weights to the dtype of its inputs" in ended.result["reason"]
    assert "autocast begins" not in ended.err + ended.result["reason"]


@pytest.mark.parametrize(
    "fails",
    [
        "torch.tensordot(net(inputs), targets, 2)",
        "torch.zeros_like(targets).scatter_add(0, targets.argsort(0), net(inputs))",
    ],
)
def test_an_error_of_dtypes_under_autocast_is_explained(run, fails):
    text = PLAIN.replace("loss = (", f"{fails}\n    loss = (")
    ended = run(text, "amp=o1")
    assert (ended.code, ended.verdict) == (1, "unknown"), ended.err
    assert "under it layers give bfloat16 beside float32 weights" in ended.result["reason"]
    assert run(text, "amp=o0").verdict == "proved"


def test_other_errors_under_autocast_are_explained_where_they_come_from_it(run):
    lacks = "could not create a primitive descriptor for the LSTM forward propagation primitive"
    ended = run(PLAIN.replace("loss = (", f"raise RuntimeError('{lacks}')\n    loss = ("), "amp=o1")
    assert "oneDNN has no kernel of this layer in bfloat16 on this CPU" in ended.result["reason"]
    ended = run(PLAIN.replace("loss = (", "nn.functional.nll_loss(targets, targets[:, 0])\n    loss = ("), "amp=o1")
    assert ended.code == 1 and ended.result["reason"].endswith("but got Float"), "as without autocast"


CACHED = """
def cached():
    with torch.no_grad():
        outputs = net(inputs)
    loss = ((outputs.requires_grad_() - targets) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, outputs)
    loss = loss.detach().requires_grad_()
    again = torch.enable_grad()(lambda _: (net(inputs) * gradient).sum().backward())
    loss.register_hook(again)
    return loss
optimizer = """


def test_a_script_that_calls_its_model_in_backward_is_told_that_autocast_does_not_hold_there(run):
    text = PLAIN.replace("loss = ((net(inputs) - targets) ** 2).mean()", "loss = cached()")
    ended = run(text.replace("optimizer = ", CACHED, 1), "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted")
    assert "calls its model in backward" in ended.err and "say train.precision=script" in ended.err


def test_optimizer_steps_alone_in_a_thread_leave_a_proof_as_it_is(run):
    stepping = "thread = __import__('threading').Thread(target=optimizer.step); thread.start(); thread.join()"
    ended = run(PLAIN.replace("optimizer.step()", stepping), "amp=o1")
    assert (ended.code, ended.verdict, "warning" in ended.err) == (0, "proved", False)


@pytest.mark.parametrize(
    "end",
    [
        "train()",
        "try:\n    train()\nexcept Exception as error:\n    print('swallowed', error)",
        "try:\n    train()\nexcept BaseException as error:\n    raise SystemExit(7)",
        "try:\n    train()\nfinally:\n    print('cleaned up')",
    ],
)
def test_a_contradiction_ends_the_script_at_the_first_observed_steps(run, end):
    ended = run(WRAPPED + end, "amp=o1", "train.precision=script")
    assert (ended.result["status"], ended.verdict, ended.result["steps"]) == ("failed", "contradicted", 2)
    assert ended.result["reason"].startswith("what ran was not amp=o1: step 1: 0.0% of forward and 0.0% of backward")
    assert ended.result["reason"].endswith("; so the script was ended")
    assert ended.code == (7 if "SystemExit" in end else 1)
    assert ended.out.count("did step") == 2
    assert ("swallowed" in ended.out, "cleaned up" in ended.out) == (False, "cleaned up" in end)
    assert "Traceback" not in ended.err
    assert ended.err.count("what ran was not amp=o1") == 1


def test_a_script_that_swallows_even_that_fails_at_its_end(run):
    end = "try:\n    train()\nexcept:\n    pass\n"
    ended = run(WRAPPED.replace("1000", "3") + end, "amp=o1", "train.precision=script")
    assert (ended.code, ended.result["status"], ended.verdict) == (1, "failed", "contradicted")


def test_a_data_loaders_process_that_calls_a_module_is_not_judged(run):
    loading = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return net(inputs[index]).detach()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    for rows in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        net(inputs).sum().backward()
        optimizer.step()
"""
    ended = run(HEAD + loading, "amp=o1", "train.precision=script")
    assert (ended.code, ended.verdict, ended.result["steps"]) == (1, "contradicted", 2)
    assert ended.result["reason"].startswith("what ran was not amp=o1: step 1: "), ended.err


LATE = (
    "import torch\noff = torch.autocast('cpu', enabled=False)\n"
    + LONG.replace("range(1000)", "range(40)").replace(
        "    optimizer.zero", "    if step == 3:\n        off.__enter__()\n    optimizer.zero"
    )
    + "off.__exit__(None, None, None)\n"
)


@pytest.mark.parametrize(
    ("words", "effect", "steps"),
    [
        ((), "it continues, and the run fails at its end (proof.stop=true would stop it)", 40),
        (("proof.stop=true",), "so it is asked to save and stop (proof.stop=true), and the run fails", 40),
    ],
)
def test_a_later_contradiction_is_told_at_once_and_fails_the_run_at_its_end(run, tmp_path, words, effect, steps):
    ended = run(LATE, "amp=o1", *words)
    (warning,) = [line for line in ended.err.splitlines() if "warning" in line]
    assert "amp=o1 is not applied: step " in warning and warning.endswith(effect)
    assert (ended.code, ended.verdict, ended.result["status"]) == (1, "contradicted", "failed")
    assert (ended.result["steps"], ended.out.count("did step")) == (steps, 40)
    assert (tmp_path / "run/STOP").exists() == bool(words)


def test_a_contradiction_of_a_stopped_attempt_is_kept_by_the_next_and_ends_none(run, tmp_path):
    ended = run(LATE, "amp=o1", environ={"LAUNCHER_ATTEMPT": "1"})
    record = tmp_path / "run/result.json"
    record.write_text(record.read_text().replace('"status": "failed"', '"status": "stopped"'))
    for attempt in (2, 3):
        ended = run(PLAIN, "amp=o1", environ={"LAUNCHER_ATTEMPT": str(attempt)})
        assert (ended.code, ended.verdict, ended.result["status"]) == (1, "contradicted", "failed")
        assert ended.result["observed"]["why"].count("in an earlier attempt: ") == 1
        record.write_text(record.read_text().replace('"status": "failed"', '"status": "stopped"'))
    ended = run(LATE.replace("step == 3", "step == 0"), "amp=o1", environ={"LAUNCHER_ATTEMPT": "4"})
    assert (ended.verdict, ended.out.count("did step")) == ("contradicted", 40)
    assert ended.result["observed"]["why"].startswith("step 101: "), "after 100 of earlier attempts"


def test_an_attempt_that_has_nothing_left_to_do_keeps_what_was_measured_and_proved(run):
    first = run(PLAIN, "amp=o1", environ={"LAUNCHER_ATTEMPT": "1"})
    assert (first.code, first.verdict, first.result["status"]) == (0, "proved", "done")
    ended = run("import torch\n", "amp=o1", "require_proof=true", environ={"LAUNCHER_ATTEMPT": "2"})
    assert (ended.code, ended.verdict, ended.result["attempts"]) == (0, "proved", 2), ended.err
    assert ended.result["throughput"] == first.result["throughput"]


REPORT = '{"schema": 1, "counted": "SGD", "reports": [%s]}'
DAMAGED = {
    "truncated": '{"schema": 1, "repo',
    "a list": "[]",
    "reports that are none": REPORT.replace("[%s]", "7"),
    "an empty report": REPORT % "{}",
    "a report that is a text": REPORT % '"step"',
    "steps that are texts": REPORT % '{"step": "1", "rank": 0, "unaccounted": {}}',
    "nested too deep": "[" * 200_000,
    "no text": b"\xff\xfe\x00",
    "too large": None,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_a_damaged_record_of_an_earlier_attempt_loses_is_named_and_the_rest_is_kept(run, tmp_path, damage):
    for number in (1, 2):
        (tmp_path / f"run/attempts/{number}").mkdir(parents=True)
    record, text = tmp_path / "run/attempts/1/reports.json", DAMAGED[damage]
    record.write_bytes(text.encode() if isinstance(text, str) else text or b"")
    if text is None:
        with record.open("r+b") as file:
            file.truncate(1 << 40)
    (tmp_path / "run/result.json").write_bytes(record.read_bytes() if text else b'{"status": "stopped", "observed": 7}')
    ended = run(PLAIN, "amp=o1", environ={"LAUNCHER_ATTEMPT": "2"})
    assert (ended.code, ended.verdict, ended.result["status"]) == (0, "proved", "done"), ended.err
    lost = ended.result["observed"]["why"].partition("on 1 rank; ")[2]
    assert "the verdict of an earlier attempt is lost: result.json is damaged (" in lost
    assert "what attempt 1 observed is lost: attempts/1/reports.json is damaged (" in lost


def test_an_observation_that_no_later_step_can_cure_ends_the_script_if_a_proof_is_required(run, monkeypatch):
    monkeypatch.delattr("torch._C._current_autograd_node")
    ended = run(LONG, "amp=o1", "require_proof=true")
    assert (ended.code, ended.result["steps"], ended.verdict) == (1, 2, "unknown")
    assert "nothing proves that amp=o1 ran: step 1: observing it failed" in ended.result["reason"]
    ended = run(LONG.replace("1000", "9"), "amp=o1")
    assert (ended.code, ended.out.count("did step"), ended.verdict) == (0, 9, "unknown")
    assert "warning: amp=o1 can't be proved: step 1: observing it failed" in ended.err
