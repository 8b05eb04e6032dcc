"""How a user's script in torch starts and ends under the wrapper: as it would alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from amp_launcher.around import wrap as shared
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.torch import nvml
from amp_launcher.torch.wrapper import TorchWrapper
from tests.amp_launcher.forking import Forked, environment, run_as_main
from tests.amp_launcher.torch.scripts import HEAD, in_process
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script


@pytest.fixture
def run(run_script, tmp_path):
    return in_process(run_script, tmp_path)


def test_arguments_reach_the_script_untouched_and_its_folder_is_its_import_path(run, tmp_path):
    passed = ["--lr", "0.1", "data/", "amp=o9", "${x}", 'it\'s "quoted"', "--", ""]
    text = "import json, os, sys\njson.dump([sys.argv, sys.path[0], os.getcwd(), __name__], open('argv.json', 'w'))"
    workdir = tmp_path / "work"
    assert run(text, "amp=o0", "require_proof=false", f"workdir={workdir}", passed=passed).code == 0
    argv, path, cwd, name = json.loads((workdir / "argv.json").read_text())
    assert argv == [str(tmp_path / "train.py"), *passed]
    assert (path, cwd, name) == (str(tmp_path), str(workdir), "__main__")


def test_threads_that_a_script_sets_before_it_imports_torch_hold(run):
    text = "import os, sys\nos.environ['OMP_NUM_THREADS'] = '{}'\nassert 'torch' not in sys.modules\nimport torch\n"
    before = torch.get_num_threads()
    try:
        for number in (2, 1):
            asserted = f"assert torch.get_num_threads() == {number}\n"
            ended = run(text.format(number) + asserted, "amp=o1", "require_proof=false")
            assert ended.code == 0, ended.err
        late = "import os, torch\nos.environ['OMP_NUM_THREADS'] = '2'\nassert torch.get_num_threads() == 1\n"
        assert run(late, "amp=o0", "require_proof=false").code == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("import sys; sys.exit('no data')", 1, "the script ended with exit code 1"),
        ("def f():\n    raise ValueError('no data')\nf()\n", 1, "ValueError: no data"),
        ("this is not", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_the_scripts_own_and_a_traceback_begins_in_it(run, tmp_path, text, code, reason):
    ended = run(text, "amp=o0")
    assert (ended.code, ended.result["status"]) == (code, "failed")
    assert reason in ended.result["reason"]
    if reason.startswith("ValueError"):
        assert ended.err.count("File ") == 2 and f'File "{tmp_path}/train.py", line 3' in ended.err


PROGRAM = ("-m", "amp_launcher.torch.script")


def words_of(folder, text):
    (folder / "train.py").write_text(text)
    return [f"script={folder}/train.py", "amp=o1", "device=cpu", "require_proof=false"]


def run_alone(folder, text):
    """A script in an interpreter of its own, which ends as a user's does."""
    command = [sys.executable, *PROGRAM, *words_of(folder, text)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True)


def test_a_script_that_ends_within_its_first_step_ends_as_it_would_alone(tmp_path):
    """Python itself crashes at its end if torch still records the step. What is observed prints nothing, whatever the
    script lets torch's profiler print."""
    variable = "import os\nos.environ['KINETO_LOG_LEVEL'] = '5'\n"
    ended = run_alone(tmp_path, f"{variable}{HEAD}net(inputs)\nraise ValueError(os.environ['KINETO_LOG_LEVEL'])\n")
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].endswith("ValueError: 5"), ended
    assert "profiler" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("end", ["", "sys.exit()"])
def test_the_variables_of_a_script_live_as_long_as_they_do_alone(tmp_path, end):
    """Freed at once, a model in DDP may deadlock with gloo's thread."""
    text = "import functools, sys\nlast = type('Last', (), {'__del__': functools.partial(print, 'freed')})()\n"
    ended = run_alone(tmp_path, text + end)
    assert ended.returncode == 0 and ended.stdout.endswith("freed\n"), ended


@pytest.mark.parametrize("end", ["raise OSError('connection closed by peer')", "pass"])
def test_an_error_after_another_rank_has_failed_is_not_the_reason_of_the_failure(run, end):
    text = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{end}\n"
    assert run(text, "amp=o0", environ={"RANK": "1", "WORLD_SIZE": "2"}).code == 3
    ended = run(text, "amp=o0", environ={"RANK": "0", "WORLD_SIZE": "2"})
    assert (ended.code, ended.result["status"]) == (1, "failed")
    assert ended.result["reason"] == "on rank 1, the script ended with exit code 3"
    assert f"script: {ended.result['reason']}" in ended.err


def test_a_missing_script_is_refused(tmp_path, capsys):
    for words, message in (([f"script={tmp_path}/none.py"], "No such file"), ([], "script=FILE is missing")):
        assert shared.main("torch", ["amp=o1", *words], TorchWrapper) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        (["amp=o0"], "float32"),
        (["amp=o1"], "bfloat16"),
        (["amp=o1", "tf32=true"], "bfloat16"),
        *((["train.precision=script", f"amp=o{level}"], "bfloat16") for level in (1, 2, 3)),
    ],
)
def test_cuda_is_left_alone_until_the_script_begins(tmp_path, monkeypatch, words, dtype):
    """A script may set CUDA_VISIBLE_DEVICES in its first lines, or fork."""

    def initialised(*given):
        raise AssertionError("CUDA was initialised")

    for name in ("_lazy_init", "is_available", "device_count", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, initialised)
    monkeypatch.setattr(nvml, "_count", lambda: 2)
    monkeypatch.setattr(nvml, "_capability", lambda index: (9, index))
    monkeypatch.setenv("LOCAL_RANK", "1")
    (tmp_path / "train.py").write_text("")
    wrapper = TorchWrapper(shared.parse([*words, "device=auto", f"script={tmp_path / 'train.py'}"], "torch"))
    with wrapper.around(StepMeter(None)):
        assert (wrapper.mode.device, wrapper.mode.capability, wrapper.mode.dtype) == ("cuda", (9, 1), dtype)


TRAIN = """
import torch

def train():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
"""


FORKED = "import os\nif not os.fork():\n    train()\n    os._exit(0)\nos.wait()"
STARTED = (
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os\\nwhile sum(os.times()[:2]) < 2: pass'])"
)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (FORKED, "processes that the script forked took 3 optimizer steps, and are not observed"),
        (STARTED, "processes that the script started computed for 2 s, and are not observed"),
        ("torch.nn.Linear(8, 8)(torch.ones(8)).sum().backward()", "no torch optimizer stepped"),
    ],
)
def test_a_script_whose_other_processes_train_is_told_so(tmp_path, end, why):
    ended = Forked(run_as_main, (PROGRAM, words_of(tmp_path, TRAIN + end))).complete()
    assert ended.returncode == 0, ended.stderr
    assert f"no step was observed; {why}" in ended.stdout


JOINED = """
import os
import torch.distributed as dist

child = not os.fork()
dist.init_process_group("gloo", init_method=f"file://{__file__}.store", rank=int(child), world_size=2)
train()
dist.barrier()
dist.destroy_process_group()
if child:
    os._exit(0)
os.wait()
"""


def test_a_script_that_is_one_of_its_own_ranks_is_told_where_the_others_are_observed(tmp_path):
    """As Lightning starts ranks by itself."""
    ended = Forked(run_as_main, (PROGRAM, words_of(tmp_path, TRAIN + JOINED))).complete()
    assert ended.returncode == 0, ended.stderr
    assert "amp=o1 unknown: step 1 was not observed on rank 1" in ended.stdout
    assert "where train.processes=N starts them" in ended.stdout


def test_a_script_that_trains_beside_processes_of_its_own_is_proved_without_a_warning(tmp_path):
    start = "multiprocessing.start_processes(print, nprocs=1, start_method='fork')"
    text = f"{TRAIN}from torch import multiprocessing\ntrain()\n{start}\n"
    ended = Forked(run_as_main, (PROGRAM, words_of(tmp_path, text))).complete()
    assert "amp=o1 proved" in ended.stdout and "warning" not in ended.stderr, ended
