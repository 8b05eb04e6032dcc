import fcntl
import http.server
import threading
from pathlib import Path

import pytest

from launcher.runs import run_roots, store

from ..run_folders import NAME, SWEEP, metrics
from .exported import BEGAN, export, row, run

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory):
    """An empty store, whose tables take seconds to make."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def client(migrated, tmp_path, monkeypatch):
    """MLflow's client of a store on SQLite that `export` uses too."""
    from mlflow.tracking import MlflowClient

    (tmp_path / "mlflow.db").write_bytes(migrated)
    monkeypatch.chdir(tmp_path)  # where it makes its folder of artifacts
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def runs(client, experiment="amp-launcher"):
    """The runs there by the run that each is of here."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len({run.data.tags["launcher.run"] for run in found}) == len(found)
    return {run.data.tags["launcher.run"]: run for run in found}


def history(client, run, name="train/loss"):
    return [
        (metric.step, metric.value, metric.timestamp) for metric in client.get_metric_history(run.info.run_id, name)
    ]


def test_mlflow_has_scalars_params_tags_verdict_and_the_report(root, client, capsys):
    run(root, steps=3)
    assert export("brave", "to=mlflow") == 0
    assert "sent\nMLflow: sqlite:///" in capsys.readouterr().out
    there = runs(client)[NAME]
    at = [int((BEGAN + step) * 1000) for step in (1, 2, 3)]
    assert history(client, there) == [(1, 1.0, at[0]), (2, 0.5, at[1]), (3, pytest.approx(1 / 3), at[2])]
    assert history(client, there, "train/loss_scale")[0][:2] == (1, 1024.0)
    assert there.data.params["amp.level"] == "o2" and there.data.params["train.lr"] == "0.5"
    tags = there.data.tags
    assert (tags["recipe"], tags["verdict"], tags["verdict.why"]) == (
        *("mnist", "proved"),
        "proved: 97% of the work in bfloat16",
    )
    assert (there.info.status, there.info.end_time) == ("FINISHED", 1767323110000)
    page = client.download_artifacts(there.info.run_id, "report.html")
    assert "brave-otter" in Path(page).read_text()


def test_a_second_export_adds_nothing_and_a_resumed_run_is_the_same_one(root, client, capsys):
    folder = run(root, steps=2)
    export("brave", "to=mlflow")
    before = runs(client)[NAME]
    export("brave", "to=mlflow")
    assert "nothing new to send" in capsys.readouterr().out
    assert runs(client)[NAME].to_dictionary() == before.to_dictionary()
    plan = store.read_or_empty(folder / "plan.json")
    store.write_json(folder / "plan.json", {**plan, "settings": {**plan["settings"], "batch": 256, "epochs": 9}})
    metrics(folder, [row(3)])
    status = store.read_or_empty(folder / "status.json")
    store.write_json(folder / "status.json", {**status, "state": "failed", "attempt": 2, "exit_code": 1})
    assert export("brave", "to=mlflow") == 0
    there = runs(client)[NAME]
    assert [step for step, *_ in history(client, there)] == [1, 2, 3]
    assert there.info.run_id == before.info.run_id
    assert (there.info.status, there.data.params["batch"], there.data.params["epochs"]) == ("FAILED", "128", "9")


def test_a_run_whose_record_is_lost_is_found_again(root, client):
    folder = run(root, steps=2)
    export("brave", "to=mlflow")
    (folder / "trackers.json").unlink()
    metrics(folder, [row(3)])
    export("brave", "to=mlflow")
    assert [step for step, *_ in history(client, runs(client)[NAME])] == [1, 2, 3]


def test_what_was_sent_before_a_kill_and_not_recorded_is_there_once(root, client):
    folder = run(root, steps=2)
    export("brave", "to=mlflow")
    recorded = store.read_or_empty(folder / "trackers.json")
    metrics(folder, [row(3), row(4)])
    export("brave", "to=mlflow")
    store.write_json(folder / "trackers.json", recorded)
    metrics(folder, [row(5)])
    export("brave", "to=mlflow")
    assert [step for step, *_ in history(client, runs(client)[NAME])] == [1, 2, 3, 4, 5]


def test_a_run_that_was_deleted_there_is_sent_anew(root, client):
    folder = run(root, steps=2)
    export("brave", "to=mlflow")
    client.delete_run(runs(client)[NAME].info.run_id)
    export("brave", "to=mlflow")
    assert [step for step, *_ in history(client, runs(client)[NAME])] == [1, 2]
    client.delete_run(runs(client)[NAME].info.run_id)
    ((place, entry),) = store.read_or_empty(folder / "trackers.json")["sent"].items()
    unknown = {**entry, "mark": {"id": "0" * 32}}  # as of one that was deleted for good
    store.write_json(folder / "trackers.json", {"sent": {place: unknown}})
    assert export("brave", "to=mlflow") == 0
    assert [step for step, *_ in history(client, runs(client)[NAME])] == [1, 2]


def test_cells_of_a_sweep_are_below_one_parent_run(root, client, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    names = [f"{SWEEP}-{index:03}" for index in range(2)]
    for index, name in enumerate(names):
        run(root, name, steps=2, plan={"swept": [["sweep.lr", index / 10]]})
    export("calm-lake", "1", "to=mlflow")  # one cell first: it has the same parent
    export("calm-lake", "to=mlflow")
    there = runs(client, "digits")
    assert set(there) == {SWEEP, *names}
    parent = there[SWEEP].info.run_id
    assert [there[name].data.tags["mlflow.parentRunId"] for name in names] == [parent, parent]
    assert [there[name].data.params["sweep.lr"] for name in names] == ["0.0", "0.1"]
    assert there[SWEEP].info.status == "FINISHED"


def test_names_that_mlflow_refuses_are_changed(root, client):
    folder = run(root, steps=1)
    metrics(folder, [row(2, logged={"acc@5 [%]": 0.5})])
    assert export("brave", "to=mlflow") == 0
    assert history(client, runs(client)[NAME], "acc_5 ___")[0][:2] == (2, 0.5)


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("htp://x", 2, "it is http://HOST:PORT, sqlite:///FILE or none"),
        (
            "http://me:hush@127.0.0.1:9",
            3,
            "http://127.0.0.1:9 does not answer as an MLflow server ([Errno 111] Connection refused)",
        ),
    ],
)
def test_a_wrong_address_is_one_sentence_and_sent_later(root, client, monkeypatch, capsys, address, code, message):
    folder = run(root, steps=2)
    with monkeypatch.context() as wrong:
        wrong.setenv("MLFLOW_TRACKING_URI", address)
        assert export("brave", "to=mlflow") == code
    said = capsys.readouterr().err
    assert message in said and "hush" not in said and "Traceback" not in said
    assert code != 3 or "nothing is lost, and the same command later sends the rest" in said
    assert not (folder / "trackers.json").exists()
    assert export("brave", "to=mlflow") == 0
    assert len(history(client, runs(client)[NAME])) == 2


def test_one_exporter_at_a_time_makes_the_tables_of_a_store(root, client, monkeypatch):
    """Two at once ended in a traceback of SQLAlchemy's."""
    import mlflow.tracking

    held = []

    class Watched(mlflow.tracking.MlflowClient):
        def __init__(self):
            with open(f"{run_roots.state_folder()}/mlflow.lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(True)
            super().__init__()

    monkeypatch.setattr(mlflow.tracking, "MlflowClient", Watched)
    run(root, steps=2)
    assert (export("brave", "to=mlflow"), held) == (0, [True])


def test_a_store_that_refuses_a_statement_is_one_sentence(root, client, monkeypatch, capsys, tmp_path):
    (tmp_path / "broken.db").write_bytes(b"no database" * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/broken.db")
    run(root, steps=2)
    assert export("brave", "to=mlflow") == 3
    assert "broken.db refuses: file is not a database" in capsys.readouterr().err


def test_a_key_that_a_server_refuses_is_one_sentence(root, client, monkeypatch, capsys):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *words):
            pass

    run(root)
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        assert export("brave", "to=mlflow") == 2
        server.shutdown()
    assert "refuses the key: set MLFLOW_TRACKING_TOKEN" in capsys.readouterr().err


def test_the_record_keeps_no_password(root, client, monkeypatch):
    from launcher.trackers.mlflow_runs import Mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@mlflow.example:5000/path")
    assert Mlflow().place == "mlflow http://mlflow.example:5000/path amp-launcher"
