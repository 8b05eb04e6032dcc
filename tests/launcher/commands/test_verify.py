"""`verify`: a real run with a fault in memory, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands import verify
from launcher.executors import plan_changes, submission
from launcher.executors import verify as replays
from launcher.executors.verify import Started
from launcher.plan.model import ScriptPlan
from launcher.plan.resolve import resolve
from launcher.runs.store import read_json, write_json
from launcher.script.render import render
from tests.launcher import warm
from tests.launcher.hosts import spec_of
from tests.launcher.slurm.test_text import LOGIN
from tests.launcher.stand_in import lay

RECIPES = Path(__file__).parents[3] / "recipes"
FLIP = """
def _faulty(run: Run) -> None:
    import os
    fit = run.fit

    def fit_faulty(*, step, model, **others):
        done = []

        def faulty(batch):
            outcome = step(batch)
            done.append(batch)
            if len(done) == 11 and os.path.exists(os.environ["FAULT"]):
                next(model.parameters()).detach().view(torch.uint8).numpy()[0, 0] ^= 1
            return outcome

        fit(step=faulty, model=model, **others)

    run.fit = fit_faulty
    train(run)


if __name__ == "__main__":
    loop.start("faulty", _faulty)
"""


def own_recipe(folder):
    """`simplenet` as a person's own recipe, in which a bit flips after step 11 while the file $FAULT is there."""
    for name in ("recipe", "recipes/faulty"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe" / "faulty.yaml").write_text("recipe: faulty\n")
    plain = (RECIPES / "simplenet" / "__init__.py").read_text().replace("simplenet", "faulty")
    (folder / "recipes" / "faulty" / "__init__.py").write_text(plain)
    torch = (RECIPES / "simplenet" / "train_torch.py").read_text().split('\n\nif __name__ == "__main__":')[0]
    (folder / "recipes" / "faulty" / "train_torch.py").write_text(torch.replace("simplenet", "faulty") + FLIP)
    return folder


def test_a_real_run_is_verified_and_a_fault_in_memory_named(tmp_path, root, capsys):
    fault = tmp_path / "fault"
    fault.touch()
    words = ("recipe=faulty", "amp=o0", "batch=16", "train.width=32", "steps=12", "checkpoint.every=5", "gpus=0")
    here = (
        f"run_root={root}",
        f"python={warm.python()}",
        f"env.FAULT={fault}",
        "env.OMP_NUM_THREADS=1",
        "telemetry.every=0",
        *("profile=framework", "profile.start=3", "profile.steps=2"),
    )
    assert main(["--config-dir", str(own_recipe(tmp_path / "own")), *words, *here, "verify.record=true"]) == 0
    fault.unlink()
    (run,) = root.glob("2*")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".resume"}
    capsys.readouterr()
    assert main(["verify", run.name, "step=10"]) == 0
    out, err = capsys.readouterr()
    assert f"replays steps 1 to 10 of {run.name} from its beginning, against its record of each step" in err
    assert re.search(rf"^same: steps \d+ to 10 of {run.name}, .* bit-identical in loss and \d+ tensors$", out, re.M)
    (same,) = {*root.glob("2*")} - {run}
    assert main(["verify", run.name]) == 1
    sentence = f"step 11 of {run.name} is the first that differs, in model.linears.0.weight (1 of "
    assert f"differs: {sentence}" in capsys.readouterr().out
    assert not any((same / name).exists() for name in ("checkpoints", "original"))
    assert "token" not in read_json(same / "provenance.json")
    (replay,) = {*root.glob("2*")} - {run, same}
    assert main(["ls", replay.name]) == 0
    assert sentence in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert main(["verify", replay.name]) == 2
    assert f"is itself a replay, of {run.name}" in capsys.readouterr().err
    assert main(["verify", run.name, "step=13"]) == 2
    assert f"step=13: {run.name} has recorded steps 1 to 12" in capsys.readouterr().err
    assert len(list(root.glob("2*"))) == 3


@pytest.fixture
def ended(tmp_path, program):
    """A run of a recipe that has ended, and left no checkpoint."""
    plan, folder = lay(tmp_path, program)
    submission.start([folder], [plan])
    assert main(["watch", folder.name]) == 0
    return folder


@pytest.fixture
def refusal(capsys):
    """The message with which `verify` refuses a run; no replay is begun."""

    def verify(folder, *words):
        capsys.readouterr()
        assert main(["verify", folder.name, *words]) == 2
        assert [path.name for path in folder.parent.glob("2*")] == [folder.name]
        return capsys.readouterr().err

    return verify


def with_checkpoint(folder, **manifest):
    (folder / "checkpoints" / "step-000000100").mkdir(parents=True, exist_ok=True)
    write_json(folder / "checkpoints" / "step-000000100" / "manifest.json", manifest)


def test_what_cannot_be_verified_is_refused_in_words(ended, refusal):
    assert "has neither a checkpoint nor a record" in refusal(ended)
    for step in ("0", "-1", "x", "1.5"):
        assert f"step={step} should be a whole number from 1" in refusal(ended, f"step={step}")
    with_checkpoint(ended, shards=2)
    assert "its checkpoints are in shards of several ranks" in refusal(ended)
    with_checkpoint(ended)
    for words, message in (
        (["step=7"], "only steps with a checkpoint can be compared: step=100"),
        (["batch=3"], "batch=3: a replay has the settings of the run; these can change: step, "),
        (["stepp=3"], "stepp=3: a replay has the settings of the run; did you mean step?"),
        (["cluster.host=b"], "cluster.host=b: a replay needs the run's files and devices"),
        (["cluster.host=b"], "with verify.record=true"),
        (["--now"], "verify has no flag --now"),
    ):
        assert message in refusal(ended, *words)
    write_json(ended / "result.json", {"attempts": 1, "determinism": "best_effort"})
    assert "is not comparable: its result is best_effort" in refusal(ended)


def test_a_replay_on_slurm_goes_to_the_node_that_is_named():
    run = resolve(spec_of("cluster=slurm", "cluster.nodelist=n1"), LOGIN)
    replay = plan_changes.changes(run, replays._of_cluster(run, {"cluster.nodelist": "n2"}))
    assert "#SBATCH --nodelist=n2\n" in render(replay.bind("20260102-030405-calm-fox"))


def test_a_replay_has_no_setting_that_the_runs_code_lacks(ended):
    """The run's own code reads its plan, and refuses a key that it does not know."""
    plan = read_json(ended / "plan.json")
    del plan["settings"]["parallel"]
    write_json(ended / "plan.json", plan)
    with_checkpoint(ended)
    assert main(["verify", ended.name]) == 3
    (replay,) = set(ended.parent.glob("2*")) - {ended}
    settings = read_json(replay / "plan.json")["settings"]
    assert settings["verify"] == {"record": True}
    assert settings["checkpoint"]["keep"] == 1
    assert set(settings) == set(plan["settings"])


def test_a_run_that_goes_on_is_refused(tmp_path, program, refusal):
    plan, folder = lay(tmp_path, program, env={"BEHAVIOUR": "time.sleep(60)"})
    submission.start([folder], [plan])
    assert re.search(r" is (queued|running); only a run that has ended can be verified", refusal(folder))
    assert main(["cancel", folder.name, "--now"]) == 0


def test_a_script_of_ones_own_is_refused(tmp_path, program, refusal):
    plan, folder = lay(
        tmp_path, program, script=ScriptPlan(file="script/own.py", in_image=False, workdir=str(tmp_path))
    )
    submission.start([folder], [plan])
    main(["watch", folder.name])
    assert "runs a script of your own (own.py)" in refusal(folder)


@pytest.mark.parametrize(
    ("first", "step", "recorded", "says"),
    [
        (3, 4, True, "step 4 of RUN from its checkpoint of step 3, against its record of each step"),
        (3, 5, False, "steps 4 to 5 of RUN from its checkpoint of step 3, against its checkpoint of step 5"),
    ],
)
def test_it_says_what_is_replayed_from_where_and_against_what(first, step, recorded, says):
    started = Started(Path("replay"), first, step, recorded)
    assert verify._introduction("RUN", started) == f"replay replays {says}"


def test_help_has_the_exit_codes(capsys):
    assert main(["verify", "--help"]) == 0
    assert "exit codes: 0 same, 1 differs, 2 not comparable" in capsys.readouterr().out
