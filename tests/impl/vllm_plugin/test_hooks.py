"""Post-import hooks: after the module's own code, once a module, also for modules imported already."""

import importlib
import sys

import pytest

from impl.vllm_plugin.hooks import AfterImport


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "patched_pkg").mkdir()
    (tmp_path / "patched_pkg" / "__init__.py").write_text("")
    (tmp_path / "patched_pkg" / "kernels.py").write_text("def f():\n    return 1\n")
    (tmp_path / "patched_pkg" / "model.py").write_text("from patched_pkg.kernels import f\ndef g():\n    return f()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("patched_pkg")]:
        del sys.modules[name]


@pytest.fixture
def finder(monkeypatch):
    made = AfterImport()
    monkeypatch.setattr(sys, "meta_path", [made, *sys.meta_path])
    return made


def double(module):
    f = module.f
    module.f = lambda: 2 * f()


def test_a_consumer_that_imports_by_name_gets_the_patch(package, finder):
    finder.add("patched_pkg.kernels", double)
    model = importlib.import_module("patched_pkg.model")
    assert model.g() == 2


def test_a_patch_of_the_consumer_leaves_the_definition_alone(package, finder):
    finder.add("patched_pkg.model", double)
    model = importlib.import_module("patched_pkg.model")
    assert model.g() == 2
    assert importlib.import_module("patched_pkg.kernels").f() == 1


def test_nothing_is_imported_by_asking(package, finder):
    finder.add("patched_pkg.model", double)
    assert not [name for name in sys.modules if name.startswith("patched_pkg")]


def test_a_module_that_is_there_is_patched_at_once(package, finder):
    model = importlib.import_module("patched_pkg.model")
    finder.add("patched_pkg.model", double)
    assert model.g() == 2


def test_hooks_run_in_order_and_reload_runs_them_again(package, finder):
    seen = []
    finder.add("patched_pkg.kernels", lambda module: seen.append("a"))
    finder.add("patched_pkg.kernels", lambda module: seen.append("b"))
    module = importlib.import_module("patched_pkg.kernels")
    importlib.reload(module)
    assert seen == ["a", "b", "a", "b"]


def test_a_module_that_does_not_exist_is_not_made_up(package, finder):
    finder.add("patched_pkg.nowhere", double)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("patched_pkg.nowhere")


def test_a_hook_that_fails_fails_the_import(package, finder):
    finder.add("patched_pkg.kernels", lambda module: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("patched_pkg.kernels")
