"""The wrapper around a user's script in torch: run as a user's file is run, in this process where one is enough."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch

from recipes.precision.levels import Amp
from recipes.settings import Settings
from recipes.torch_.script import TorchWrapper
from recipes.trainer import script as shared
from recipes.typed import plain
from tests.recipes.torch_ import trainers

HEAD = """\
import sys
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
inputs = torch.randn(64, 32)
targets = inputs.sum(1, keepdim=True)
"""
PLAIN = (
    HEAD
    + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    loss = ((net(inputs) - targets) ** 2).mean()
    loss.backward()
    optimizer.step()
print("ended at", loss.item())
"""
)
OWN = (
    HEAD
    + """
from recipes.torch_.precision import Precision
precision = Precision.from_env()
net = precision.cast(net)
optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
for step in range(5):
    optimizer.zero_grad()
    with precision.forward():
        loss = ((net(precision.input(inputs)).float() - targets) ** 2).mean()
    precision.backward(loss)
    precision.step(optimizer)
    precision.update()
"""
)
GAN = (
    HEAD
    + """
critic = nn.Linear(1, 1)
first, second = (torch.optim.SGD(each.parameters(), lr=1e-4) for each in (net, critic))
for step in range(3):
    first.zero_grad()
    critic(net(inputs)).mean().backward()
    first.step()
    second.zero_grad()
    critic(net(inputs).detach()).mean().backward()
    second.step()
"""
)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs a script under the wrapper in this process: its exit code, what it printed, and its result."""

    def start(text, *words, passed=(), environ=None):
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(text))
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        told = [*words, f"script={file}", f"run={folder}", "device=cpu"]
        code = shared.main("torch", [*told, *(["--", *passed] if passed else [])], TorchWrapper)
        found = folder / "result.json"
        return code, capfd.readouterr(), json.loads(found.read_text()) if found.exists() else {}

    return start


def spec(tmp_path, **settings):
    path = tmp_path / "plan.json"
    values = plain(Settings(recipe="script", device="cpu", train=None))
    path.write_text(json.dumps({"schema": 2, "settings": {**values, "train": {}, **settings}}))
    return {"LAUNCHER_SPEC": str(path)}


CAST = """
import torch
from torch import nn
from recipes.torch_.precision import Precision
def net():
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.ModuleDict({"body": body, "head": nn.Linear(64, 16)})
class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, inputs):
        return self.model["head"](self.model["body"](inputs))
precision = Precision.from_env()
nets = [precision.cast(net()) for _ in range(COUNT)]
optimizers = [precision.optimizer(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in nets]
for step in range(3):
    with precision.forward():
        inputs = precision.input(torch.ones(16, 32))
        loss = sum(precision.output(CALL).square().mean() for each in nets)
    precision.backward(loss)
    for optimizer in optimizers:
        precision.step(optimizer)
        optimizer.zero_grad()
    precision.update()
"""


@pytest.mark.parametrize("asked", [Amp(level="o2", keep_fp32=("head",)), Amp(level="o2", gemm="fp8-tensorwise")])
@pytest.mark.parametrize("call", ['each["head"](each["body"](inputs))', "Around(each)(inputs)"])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_are_known_however_the_script_calls_the_model(tmp_path, run, asked, call, count):
    words = ["amp=o2", *(["amp.keep_fp32=[head]"] if asked.keep_fp32 else [f"amp.gemm={asked.gemm}"])]
    environ = spec(tmp_path, amp=plain(asked))
    text = CAST.replace("CALL", call).replace("COUNT", str(count))
    code, printed, result = run(text, *words, environ=environ)
    assert (code, result["observed"]["verdict"]) == (0, "proved"), (result, printed)
    kept = "kept in float32 as requested: linear in float32"
    assert (kept if asked.keep_fp32 else f"of {2 * count} linear layers") in result["observed"]["why"]


def last_loss(out):
    return float(out.split("ended at ")[1].split()[0])


def test_o1_is_applied_around_a_script_that_knows_nothing_of_it_and_proved(run):
    code, _, found = run(PLAIN, "amp=o1")
    assert (code, found["status"], found["mechanism"]) == (0, "done", "autocast_around")
    assert found["observed"]["verdict"] == "proved"
    assert found["observed"]["dtype"] == "bfloat16"
    assert found["observed"]["half_flop_share"] == 1.0
    assert found["steps"] == 30
    assert not torch.is_autocast_enabled("cpu")


IN_A_THREAD = """
import threading
{before}
def train():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range({steps}):
        optimizer.zero_grad()
        ((net(inputs) - targets) ** 2).mean().backward()
        optimizer.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("before", ["", "net(inputs)"], ids=["alone", "after a forward of its own"])
def test_training_in_a_thread_is_unknown_and_the_reason_names_the_thread(run, before):
    code, _, found = run(HEAD + IN_A_THREAD.format(before=before, steps=3), "amp=o1")
    assert (code, found["observed"]["verdict"]) == (1, "unknown")
    assert "every optimizer step was taken in a thread that the script started" in found["observed"]["why"]


def test_training_in_a_thread_is_warned_of_while_it_trains(run):
    text = HEAD + IN_A_THREAD.format(before="", steps=12)
    _, printed, _ = run(text, "amp=o1")
    (warning,) = [line for line in printed.err.splitlines() if "warning" in line]
    assert warning.startswith("script: warning: amp=o1 can't be proved: every optimizer step was taken in a thread")
    assert warning.endswith("the run will fail at its end (require_proof=false lets that pass)")
    _, printed, _ = run(text, "amp=o1", "require_proof=false")
    assert printed.err.count("main one; it continues (require_proof=false)") == 1
    stepping = "thread = __import__('threading').Thread(target=optimizer.step); thread.start(); thread.join()"
    assert "warning" not in run(PLAIN.replace("optimizer.step()", stepping), "amp=o1")[1].err


def test_optimizer_steps_in_a_thread_leave_a_proof_as_it_is(run):
    stepping = "thread = __import__('threading').Thread(target=optimizer.step); thread.start(); thread.join()"
    code, _, found = run(PLAIN.replace("optimizer.step()", stepping), "amp=o1")
    assert (code, found["observed"]["verdict"]) == (0, "proved")


def test_weights_move_under_it_which_they_would_not_with_autocasts_cache(run):
    """With the cache on, every forward sees the weights of the first: the loss would stay where it began."""
    _, whole, _ = run(PLAIN, "amp=o0")
    _, half, _ = run(PLAIN, "amp=o1")
    assert last_loss(half.out) == pytest.approx(last_loss(whole.out), rel=0.05)
    assert last_loss(half.out) < 20  # 36 at first


def test_o0_is_proved_too(run):
    code, _, found = run(PLAIN, "amp=o0")
    assert (code, found["observed"]["verdict"], found["observed"]["half_flop_share"]) == (0, "proved", 0.0)


@pytest.mark.parametrize(
    "words", [("amp=o2",), ("amp=o3",), ("amp=o1", "amp.dtype=float16"), ("amp=o1", "amp.deny=[mm]")]
)
def test_what_needs_a_hand_in_the_script_is_refused_with_the_lines_to_add(run, words):
    code, printed, found = run("raise SystemExit('it ran')", *words)
    assert (code, found) == (2, {})
    assert "precision = Precision.from_env()" in printed.err
    assert "it ran" not in printed.err


@pytest.mark.parametrize(("level", "dtype"), [("o2", "float16"), ("o1", "float16"), ("o3", "bfloat16")])
def test_a_script_that_asks_for_its_precision_may_have_any_level(run, tmp_path, level, dtype):
    amp = {"level": level, "dtype": dtype}
    code, _, found = run(OWN, f"amp={level}", f"amp.dtype={dtype}", environ=spec(tmp_path, amp=amp))
    assert code == 0, found["reason"]
    assert (found["observed"]["verdict"], found["observed"]["dtype"]) == ("proved", dtype)
    assert found["mechanism"] in ("half_model_fp32_masters", "autocast", "half_model")


def test_a_script_that_asks_in_a_helper_is_noticed_while_it_runs(run, tmp_path):
    (tmp_path / "asking_helper.py").write_text(
        "from recipes.torch_.precision import Precision as P\nmake = P.from_env\n"
    )
    text = OWN.replace("Precision.from_env()", "make()").replace(
        "from recipes.torch_.precision import Precision", "from asking_helper import make"
    )
    code, _, found = run(text, "amp=o1", environ=spec(tmp_path, amp={"level": "o1"}))
    assert (code, found["mechanism"], found["observed"]["verdict"]) == (0, "autocast", "proved")


def test_a_script_that_sets_its_precision_in_its_own_way_is_held_against_the_level(run):
    own = PLAIN.replace("    loss = ", "    with torch.autocast('cpu', dtype=torch.bfloat16):\n        loss = ")
    code, _, found = run(own, "amp=o1", "train.precision=script")
    assert (code, found["mechanism"], found["observed"]["verdict"]) == (0, "script", "proved")
    code, printed, found = run(PLAIN, "amp=o1", "train.precision=script")
    assert (code, found["observed"]["verdict"]) == (1, "contradicted")
    assert "what ran was not amp=o1" in printed.err


LONG = PLAIN.replace("range(30)", "range(1000)").replace(
    "    optimizer.step()", "    optimizer.step()\n    print('did step', step + 1, flush=True)"
)
WRAPPED = "def train():\n" + "".join(f"    {line}\n" for line in LONG.splitlines())


def test_first_steps_that_overflow_and_optimizers_that_step_later_are_no_contradiction(run):
    scaled = PLAIN.replace("for step", "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**30)\nfor step", 1)
    scaled = scaled.replace(
        "    loss.backward()\n    optimizer.step()",
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
    )
    scaled = scaled.replace("    loss = ", "    with torch.autocast('cpu', dtype=torch.float16):\n        loss = ")
    code, _, found = run(scaled, "amp=o1", "amp.dtype=float16", "train.precision=script")
    assert (code, found["observed"]["verdict"]) == (0, "proved"), found["reason"]
    assert found["updates"]["applied"] < found["updates"]["attempted"], "some overflowed"
    late = GAN.replace("range(3)", "range(8)").replace("    first.step()", "    first.step() if step > 4 else None")
    code, _, found = run(late, "amp=o1")
    assert (code, found["observed"]["verdict"]) == (0, "proved"), found["reason"]


def test_an_optimizer_in_float32_may_step_before_that_of_the_half_model(run):
    text = (
        HEAD
        + """
table = torch.zeros(3, requires_grad=True)
net = net.to(torch.bfloat16)
early, late = torch.optim.SGD([table], lr=0.1), torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100):
    for each in (early, late):
        each.zero_grad()
    loss = ((net(inputs.bfloat16()).float() - targets) ** 2).mean() + table.sum()
    loss.backward()
    early.step()
    if step > 2:
        late.step()
"""
    )
    code, _, found = run(text, "amp=o3", "train.precision=script")
    assert (code, found["observed"]["verdict"]) == (0, "proved"), found["reason"]


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
    code, printed, found = run(WRAPPED + end, "amp=o1", "train.precision=script")
    assert (found["status"], found["observed"]["verdict"], found["steps"]) == ("failed", "contradicted", 2)
    assert found["reason"].startswith("what ran was not amp=o1: step 1: 0.0% of forward and 0.0% of backward ran in")
    assert found["reason"].endswith("; so the script was ended")
    assert code == (7 if "SystemExit" in end else 1)
    assert printed.out.count("did step") == 2
    assert ("swallowed" in printed.out, "cleaned up" in printed.out) == (False, "cleaned up" in end)
    assert "Traceback" not in printed.err
    assert printed.err.count("what ran was not amp=o1") == 1


def test_a_data_loaders_process_that_calls_a_module_is_not_the_one_that_is_judged(run):
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
    code, printed, found = run(HEAD + loading, "amp=o1", "train.precision=script")
    assert (code, found["observed"]["verdict"], found["steps"]) == (1, "contradicted", 2)
    assert found["reason"].startswith("what ran was not amp=o1: step 1: "), printed.err


def test_a_script_that_swallows_even_that_fails_at_its_end(run):
    code, _, found = run(
        WRAPPED.replace("1000", "3") + "try:\n    train()\nexcept:\n    pass\n", "amp=o1", "train.precision=script"
    )
    assert (code, found["status"], found["observed"]["verdict"]) == (1, "failed", "contradicted")


def test_without_a_required_proof_a_contradiction_is_only_a_warning(run):
    code, printed, found = run(LONG.replace("1000", "30"), "amp=o1", "train.precision=script", "require_proof=false")
    assert (printed.out.count("did step"), found["steps"], found["observed"]["verdict"]) == (30, 30, "contradicted")
    warnings = [line for line in printed.err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("script: warning: amp=o1 is not applied: step 1: ")
    assert warnings[0].endswith("it continues (require_proof=false)")
    assert code == 1, "a contradicted run fails, whoever asked for a proof"


def test_an_observation_that_no_later_step_can_cure_ends_the_script_if_a_proof_is_required(run, monkeypatch):
    monkeypatch.delattr("torch._C._current_autograd_node")
    code, printed, found = run(LONG, "amp=o1")
    assert (code, found["steps"], found["observed"]["verdict"]) == (1, 2, "unknown")
    assert "nothing proves that amp=o1 ran: step 1: observing it failed" in found["reason"]
    code, printed, found = run(LONG.replace("1000", "9"), "amp=o1", "require_proof=false")
    assert (code, printed.out.count("did step"), found["observed"]["verdict"]) == (0, 9, "unknown")
    assert "warning: amp=o1 can't be proved: step 1: observing it failed" in printed.err


def test_autocast_switched_off_inside_of_the_script_is_seen(run):
    off = PLAIN.replace("    loss = ", "    with torch.autocast('cpu', enabled=False):\n        loss = ")
    code, _, found = run(off, "amp=o1")
    assert (code, found["observed"]["verdict"]) == (1, "contradicted")


def test_both_networks_of_a_gan_are_seen(run):
    code, _, found = run(GAN, "amp=o1")
    assert (code, found["observed"]["verdict"], found["steps"]) == (0, "proved", 3)


def test_a_compiled_model_is_seen(run):
    text = PLAIN.replace("optimizer =", "net = torch.compile(net, backend='aot_eager')\noptimizer =")
    code, _, found = run(text, "amp=o1")
    assert (code, found["observed"]["verdict"]) == (0, "proved"), found["observed"]


def test_a_script_without_a_model_proves_nothing_and_fails_unless_that_is_allowed(run):
    code, printed, found = run("print('no model here')", "amp=o1")
    assert (code, found["observed"]["verdict"]) == (1, "unknown")
    assert "require_proof=false lets that pass" in printed.err
    assert "train.processes=N starts N" in found["observed"]["why"]
    assert run("print('no model here')", "amp=o1", "require_proof=false")[0] == 0


def test_arguments_reach_the_script_untouched_and_its_folder_is_its_import_path(run, tmp_path):
    passed = ["--lr", "0.1", "data/", "amp=o9", "${x}", 'it\'s "quoted"', "--", ""]
    text = "import json, os, sys\njson.dump([sys.argv, sys.path[0], os.getcwd(), __name__], open('told.json', 'w'))"
    elsewhere = tmp_path / "work"
    assert run(text, "amp=o0", "require_proof=false", f"workdir={elsewhere}", passed=passed)[0] == 0
    argv, path, cwd, name = json.loads((elsewhere / "told.json").read_text())
    assert argv == [str(tmp_path / "train.py"), *passed]
    assert (path, cwd, name) == (str(tmp_path), str(elsewhere), "__main__")


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("import sys; sys.exit(7)", 7, "the script ended with exit code 7"),
        ("import sys; sys.exit('no data')", 1, "the script ended with exit code 1"),
        ("raise ValueError('no data')", 1, "ValueError: no data"),
        ("this is not", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_the_scripts_own(run, text, code, reason):
    ended, printed, found = run(text, "amp=o0")
    assert (ended, found["status"]) == (code, "failed")
    assert reason in found["reason"]
    assert "runpy" not in printed.err or "SyntaxError" in printed.err


def test_a_traceback_begins_in_the_script(run, tmp_path):
    _, printed, _ = run("def f():\n    1 / 0\nf()\n", "amp=o0")
    assert printed.err.count("File ") == 2
    assert f'File "{tmp_path}/train.py", line 3' in printed.err


@pytest.mark.parametrize("here", ["raise OSError('connection closed by peer')", "pass"])
def test_what_fails_because_another_rank_has_gone_is_not_why_the_job_failed(run, here):
    text = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{here}\n"
    assert run(text, "amp=o0", environ={"RANK": "1", "WORLD_SIZE": "2"})[0] == 3
    code, printed, found = run(text, "amp=o0", environ={"RANK": "0"})
    assert (code, found["status"]) == (1, "failed")
    assert found["reason"] == "on rank 1, the script ended with exit code 3"
    assert f"script: {found['reason']}" in printed.err


def test_a_missing_script_is_refused(tmp_path, capsys):
    told = ["amp=o1", f"script={tmp_path}/none.py"]
    assert shared.main("torch", told, TorchWrapper) == 2
    assert "No such file" in capsys.readouterr().err
    assert shared.main("torch", ["amp=o1"], TorchWrapper) == 2
    assert "script=FILE is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_all_ranks_are_judged(tmp_path):
    """The second rank switches autocast off, which the first one reports."""
    text = PLAIN.replace(
        "optimizer =",
        "import os\nfrom torch import distributed\ndistributed.init_process_group('gloo')\n"
        "net = nn.parallel.DistributedDataParallel(net)\n"
        "if os.environ['RANK'] == sys.argv[1]: torch.set_autocast_enabled('cpu', False)\noptimizer =",
        1,
    )
    (tmp_path / "train.py").write_text(text)
    for liar, verdict in (("9", "proved"), ("1", "contradicted")):
        run = tmp_path / f"run-{liar}"
        words = ["amp=o1", "device=cpu", f"script={tmp_path}/train.py", f"run={run}", f"workdir={tmp_path}"]
        done = trainers.run([*words, "--", liar], 2, trainers.SCRIPT)
        found = json.loads((run / "result.json").read_text())
        assert (found["observed"]["verdict"], found["world_size"]) == (verdict, 2), done.stderr
        assert done.returncode == (0 if verdict == "proved" else 1)
        if verdict == "contradicted":
            assert "on rank 1" in found["observed"]["why"]
            assert found["reason"].startswith("on rank 1, what ran was not amp=o1: step 1 on rank 1: ")
            assert found["steps"] < 5, "the other rank does not wait for the one that ended"
