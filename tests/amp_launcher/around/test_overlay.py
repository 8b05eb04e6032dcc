"""A script's modules while its checkout changes under it: the snapshot's code by the checkout's names.

Each row is compared with plain Python in the checkout as it was when the snapshot was taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CODE = Path(__file__).parents[3]
FILES = {
    "train.py": "",
    "helper.py": "VALUE = 'first'\ndef fail():\n    raise ValueError('of the first text')\n",
    "utils.py": "VALUE = 'first'\n",
    "pkg/__init__.py": "from .inner import VALUE\n",
    "pkg/inner.py": "VALUE = 'first'\n",
    "names/part.py": "VALUE = 'first'\n",
    "src/late/__init__.py": "VALUE = 'first'\n",
}
EDIT = {"helper.py": "# moved\n\nVALUE = 'second'\n", "pkg/inner.py": "VALUE = 'second'\n", "train.py": "1 / 0\n"}
WORKERS = """
import multiprocessing, os, sys
import helper
class Item:
    text = "first"
def work(item):
    import pkg
    main = sys.modules["__main__"].__file__
    return item.text, helper.VALUE, pkg.VALUE, pkg.__file__, main, sys.path, dict(os.environ)
if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(how, pool.map(work, [Item()]))
"""
TELL = {
    "origin": "import helper, pkg\nprint(helper.VALUE, pkg.VALUE, helper.__file__, pkg.__path__, helper.__cached__)",
    "loader": "import helper\nprint(type(helper.__loader__), helper.__spec__.origin)",
    "namespace": "import names.part\nprint(names.part.VALUE, names.part.__file__, list(names.__path__))",
    "moved": "import utils\nprint(utils.VALUE, utils.__file__)",
    "lines": "import helper, inspect\nprint(inspect.getsource(helper.fail))",
    "traceback": "import helper, traceback as t\n"
    "try:\n    helper.fail()\nexcept ValueError:\n    print(t.format_exc())",
    "beside": "import pkg\nprint(open(os.path.dirname(pkg.__file__) + '/data.bin').read())",
    "resources": "import importlib.resources as r\nprint(r.files('pkg').joinpath('data.bin').read_text())",
    "pkgutil": "import pkgutil\nprint(pkgutil.get_data('pkg', 'data.bin'))",
    "ignored": "import ignored\nprint(ignored.VALUE, ignored.__file__)",
    "by file": "import importlib.util as u\ns = u.spec_from_file_location('h', os.getcwd() + '/helper.py')\n"
    "m = u.module_from_spec(s)\ns.loader.exec_module(m)\nprint(m.VALUE)",
    "run_path": "import runpy\nprint(runpy.run_path('helper.py')['VALUE'])",
    "reload": "import helper, importlib\nprint(importlib.reload(helper).VALUE)",
    "workers": WORKERS,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout, and beside it the snapshot of what git tracks there."""
    for name, text in FILES.items():
        for root in (tmp_path / "checkout", tmp_path / "kept"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (tmp_path / "checkout/pkg/data.bin").write_text("data")
    (tmp_path / "checkout/ignored.py").write_text("VALUE = 'generated'\n")
    return tmp_path


def run(project: Path, text: str, *, overlaid: bool) -> str:
    """What a script prints: by plain Python, or by the overlay once the checkout was changed."""
    for root in ("checkout", "kept"):
        (project / root / "train.py").write_text(f"import os\n{text}\n")
    argv = ["train.py"]
    if overlaid:
        change(project / "checkout")
        where = f"Path({str(project / 'kept/train.py')!r}), (), Path({str(project / 'checkout')!r}), {{}}, 'train.py'"
        started = (
            f"import sys; sys.path.insert(0, {str(CODE)!r})\nfrom pathlib import Path\n"
            "from amp_launcher.around import overlay, script_execution\ndel sys.path[0]\n"
            f"overlay.Overlay({str(project / 'checkout')!r}, {str(project / 'kept')!r}).install()\n"
            f"sys.exit(script_execution.execute({where})[0])"
        )
        argv = ["-c", started]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    argv, cwd = [sys.executable, *argv], project / "checkout"
    ended = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def change(checkout: Path) -> None:
    """What another branch may do to a checkout."""
    for name, text in EDIT.items():
        (checkout / name).write_text(text)
    (checkout / "utils.py").unlink()
    (checkout / "utils").mkdir()
    (checkout / "utils/__init__.py").write_text("VALUE = 'second'\n")
    shutil.rmtree(checkout / "names")


@pytest.mark.parametrize("idiom", TELL)
def test_a_changed_checkout_gives_what_plain_python_gave_before(project: Path, idiom: str) -> None:
    before = run(project, TELL[idiom], overlaid=False)
    shutil.rmtree(project / "checkout/__pycache__", ignore_errors=True)
    shutil.rmtree(project / "checkout/pkg/__pycache__", ignore_errors=True)
    assert run(project, TELL[idiom], overlaid=True) == before
    assert not list((project / "kept").rglob("__pycache__"))
    compiled = [path.name.partition(".")[0] for path in (project / "checkout").rglob("*.pyc")]
    assert not {"helper", "inner", "utils", "part"} & {*compiled}, "a compiled file of another text"


def test_an_unchanged_module_is_compiled_where_plain_python_does_and_a_built_one_is_found(project: Path) -> None:
    """A built extension module stands before the source beside it."""
    built = project / "checkout" / f"helper{sysconfig.get_config_var('EXT_SUFFIX')}"
    built.write_bytes(b"no library")
    text = (
        "import pkg\ntry:\n    import helper\nexcept ImportError as error:\n    print(type(error).__name__, error.path)"
    )
    before = run(project, text, overlaid=False)
    assert str(built) in before
    shutil.rmtree(project / "checkout/pkg/__pycache__", ignore_errors=True)
    assert run(project, text, overlaid=True) == before
    assert [path.name.partition(".")[0] for path in (project / "checkout/pkg").rglob("*.pyc")] == ["__init__"]


@pytest.mark.parametrize("changed", [False, True])
def test_a_module_that_nothing_else_has_is_found_last_and_its_folder_is_named(project: Path, changed: bool) -> None:
    checkout, kept = str(project / "checkout"), str(project / "kept")
    if changed:
        change(project / "checkout")
    start = (
        f"import sys; sys.path.insert(0, {str(CODE)!r})\nfrom amp_launcher.around import overlay\ndel sys.path[:2]\n"
        f"overlay.Overlay({checkout!r}, {kept!r}).install()\n"
        f"before = list(sys.path)\nsys.meta_path.append(overlay.LastResort({checkout!r}, {kept!r}))\n"
        "import late\ntry:\n    import names\nexcept ImportError:\n    print(late.VALUE, late.__file__)\n"
        "print(sys.path == [*before, sys.path[-1]], sys.path[-1])"
    )
    ended = subprocess.run([sys.executable, "-c", start], cwd="/", capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"first {checkout}/src/late/__init__.py\nTrue {checkout}/src\n", ended.stderr
    assert ended.stderr == (
        f"script: late is imported from {checkout}/src, which plain Python would not search; it now ends sys.path\n"
    )


def test_the_runs_own_package_is_not_mixed_with_an_installed_one_in_workers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "installed/amp_launcher").mkdir(parents=True)
    (project / "installed/amp_launcher/__init__.py").write_text("raise Exception('of another version')\n")
    monkeypatch.setenv("PYTHONPATH", str(project / "installed"))
    text = (
        "import multiprocessing\ndef work(how):\n    from amp_launcher import job\n    return job.__file__\n"
        "if __name__ == '__main__':\n    for how in ('spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(1) as pool:\n            print(*pool.map(work, [how]))"
    )
    assert run(project, text, overlaid=True) == f"{CODE}/amp_launcher/job/__init__.py\n" * 2
