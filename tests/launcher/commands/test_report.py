import os
import shutil

import pytest

from launcher.commands import report
from launcher.errors import UsageError

from ..compare import folders as comparisons
from ..report import folders
from ..run_folders import NAME, called


def test_a_sweep_is_reported_to_the_terminal_markdown_and_a_page_at_once(root, tmp_path):
    folders.sweep(root)
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    done = called("report", folders.SWEEP, "--html", str(page), "--markdown", str(text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(folders.SWEEP)
    assert done.stderr.splitlines() == [f"written: {page}", f"written: {text}"]
    assert page.read_text().startswith("<!doctype html>")
    assert text.read_text().startswith(f"# {folders.SWEEP}")


@pytest.mark.parametrize("words", [[], [NAME, NAME]])
def test_markdown_of_the_newest_run_or_of_one_named_twice_can_go_to_the_terminal(root, capsys, words):
    folders.run(root, NAME)
    assert report.main([*words, "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith(f"# {NAME}\n")


def test_without_words_it_is_the_whole_newest_sweep_which_is_named(root, capsys):
    folders.run(root, NAME)
    folders.sweep(root)
    assert report.main(["--markdown", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"# {folders.SWEEP}\n")
    assert printed.err == f"newest sweep: {folders.SWEEP}\n"


def test_an_unknown_run_is_refused_and_writes_nothing(root, tmp_path):
    folders.run(root, NAME)
    page = tmp_path / "a.html"
    with pytest.raises(UsageError, match="no run 'brave-ottr'; did you mean 20260102-030405-brave-otter"):
        report.main(["brave-ottr", "--html", str(page)])
    assert not page.exists()


@pytest.mark.parametrize(
    ("file", "why"), [("none/a.html", "none/a.html: No such file or directory"), (".", ".*: Is a directory"), ("/", "")]
)
def test_a_file_that_cannot_be_written_is_a_usage_error(root, tmp_path, monkeypatch, file, why):
    folders.run(root, NAME)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"{why}; name a file where you may write"):
        report.main([NAME, "--html", file])


def test_all_is_a_table_of_every_run_newest_first_with_a_page_of_each_beside_it(root, tmp_path, capsys):
    folders.run(root, NAME)
    cells = folders.sweep(root)
    html = tmp_path / "all.html"
    assert report.main(["--all", f"run_root={root}", "--html", str(html)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1] == "4 runs: 4 done."
    rows = [line.split() for line in printed.out.splitlines()[5:]]
    assert [row[0] for row in rows] == [*(f"calm-lake-{number:03}" for number in (2, 1, 0)), "brave-otter"]
    assert rows[0][4:7] == ["o2", "bfloat16", "proved"]
    assert printed.err.splitlines() == [f"written: {html}"]
    names = {path.name for path in (tmp_path / "all-runs").iterdir()}
    assert names == {f"{folder.name}.html" for folder in (root / NAME, *cells)}


def test_only_pages_of_runs_that_changed_are_written_again(root, tmp_path):
    runs = [folders.run(root, NAME), *folders.sweep(root)]
    words = ["--all", f"run_root={root}", "--html", str(tmp_path / "all.html")]
    report.main(words)
    pages = [tmp_path / "all-runs" / f"{run.name}.html" for run in runs]
    before = [page.stat().st_ino for page in pages]
    os.utime(runs[1] / "metrics.jsonl", (2e9, 2e9))
    report.main(words)
    assert [page.stat().st_ino == old for page, old in zip(pages, before, strict=True)] == [True, False, True, True]


def test_a_run_that_has_not_ended_and_a_comparison_are_rows_of_all(root, capsys):
    folder = folders.run(root, NAME, steps=7)
    (folder / "result.json").unlink()
    (folder / "status.json").unlink()
    comparison = root / "20260104-000000-cool-owl"
    comparison.mkdir()
    comparisons.plan_of(comparison, ("o0", [1] * 5), ("o2", [2] * 5))
    other = folders.run(root, "20260101-000000-other-fox")
    for name in ("status.json", "submission.json"):
        shutil.copy(other / name, comparison)
    report.main(["--all", f"run_root={root}"])
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[5:]}
    assert "2 arms" in rows["cool-owl"]
    assert "0.3286" in rows["brave-otter"], "the loss of its last step"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--all", NAME], f"report: --all is every run; leave out {NAME}, or --all"),
        (["--all", "--html", "."], "Is a directory; name a file"),
        (["--all", "--html", "none/a.html"], "No such file or directory; name a file"),
    ],
)
def test_all_refuses_what_it_can_not_do_and_leaves_nothing(root, tmp_path, monkeypatch, words, why):
    folders.run(root, NAME)
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    with pytest.raises(UsageError, match=why):
        report.main([*words, f"run_root={root}"])
    assert list(place.iterdir()) == []


def test_all_of_an_empty_root_says_so(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert report.main(["--all", f"run_root={empty}"]) == 0
    assert "No runs." in capsys.readouterr().out
