import pytest

from launcher.commands import report
from launcher.errors import UsageError

from ..report import folders
from ..run_folders import NAME, launcher


def test_a_sweep_is_reported_to_the_terminal_markdown_and_a_page_at_once(root, tmp_path):
    folders.sweep(root)
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    done = launcher(
        "report", folders.SWEEP, "--html", str(page), "--markdown", str(text), state_home=tmp_path / "state"
    )
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
