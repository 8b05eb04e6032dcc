import importlib
import importlib.util
import sys

import pytest

from amp_launcher.around.once_imported import hidden, once_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "seldom_imported.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "seldom_imported"
    sys.modules.pop("seldom_imported", None)


def test_each_callback_gets_the_module_once_it_was_executed(module):
    values, before = [], list(sys.meta_path)
    with (
        once_imported(module, lambda made: values.append(made.value)),
        once_imported(module, lambda made: values.append(made.value + 1)),
    ):
        assert importlib.util.find_spec(module) and values == [], "a look-up is no import"
        exec(f"import {module}\nimport {module}")
        assert sorted(values) == [1, 2]
        with once_imported(module, lambda made: values.append(made.value + 2)):
            assert values[-1] == 3, "it was imported already"
    assert sys.meta_path == before


def test_nothing_is_called_after_the_context_and_a_missing_module_stays_missing(module):
    values = []
    absent = "not_there_at_all"
    with once_imported(module, values.append), once_imported(absent, values.append), pytest.raises(ImportError):
        exec(f"import {absent}")
    exec(f"import {module}")
    assert values == []


@pytest.mark.parametrize("statement", ["import seldom.below", "from seldom.below import value", "import seldom"])
def test_what_was_imported_before_is_there_once_a_script_imports_it(statement, tmp_path, monkeypatch):
    (tmp_path / "seldom").mkdir()
    (tmp_path / "seldom" / "__init__.py").write_text("from . import below\n")
    (tmp_path / "seldom" / "below.py").write_text("value = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    seldom = importlib.import_module("seldom")
    spec, before, values = seldom.__spec__, list(sys.meta_path), []
    try:
        with hidden("seldom", values.append):
            assert not [name for name in sys.modules if name.startswith("seldom")]
        assert sys.modules["seldom"] is seldom and not values, "nothing imported it"
        with hidden("seldom", values.append):
            assert importlib.util.find_spec("seldom").origin == spec.origin
            exec(statement)
            assert values == [seldom] and sys.modules["seldom.below"] is seldom.below
            assert seldom.__spec__ is spec
        assert sys.meta_path == before
    finally:
        del sys.modules["seldom"], sys.modules["seldom.below"]
