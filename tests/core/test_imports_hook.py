"""`ctxcarry._imports`: being told when a module has been imported."""

import importlib
import importlib.util
import itertools
import sys
import threading
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from ctxcarry import _imports
from ctxcarry._imports import when_imported

TIMEOUT = 30
numbers = itertools.count()


@pytest.fixture
def unique():
    """Return a module name that nobody has used."""
    return f"ctxcarry_throwaway_{next(numbers)}"


@pytest.fixture(autouse=True)
def forget_throwaways(monkeypatch, tmp_path):
    """Let modules be imported from `tmp_path`, and forget them and the hooks afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    waiting = dict(_imports._waiting)
    finders = list(sys.meta_path)
    had_finder = _imports._finder in finders
    yield
    for name in [n for n in sys.modules if n.startswith("ctxcarry_throwaway_")]:
        del sys.modules[name]
    _imports._waiting.clear()
    _imports._waiting.update(waiting)
    if not had_finder and _imports._finder in sys.meta_path:
        sys.meta_path.remove(_imports._finder)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a module's source."""

    def write(name, source=""):
        path = tmp_path.joinpath(*name.split("."))
        path.parent.mkdir(exist_ok=True, parents=True)
        path.with_suffix(".py").write_text(source)
        importlib.invalidate_caches()

    return write


def test_told_after_a_later_import(unique, write):
    """The call comes once, when the module has been executed to its end."""
    write(unique, "first = 1\nlast = 2\n")
    seen = []
    when_imported(unique, lambda: seen.append(sys.modules[unique].last))
    assert [] == seen
    importlib.import_module(unique)
    assert [2] == seen


def test_told_at_once_of_an_earlier_import(unique, write):
    """For a module that has been imported already the call comes at once."""
    write(unique)
    importlib.import_module(unique)
    seen = []
    when_imported(unique, lambda: seen.append(1))
    assert [1] == seen


def test_nothing_is_imported(unique, write):
    """Waiting for a module does not import it, nor does asking where it is."""
    write(unique)
    seen = []
    when_imported(unique, lambda: seen.append(1))
    assert importlib.util.find_spec(unique) is not None
    assert ([], False) == (seen, unique in sys.modules)
    importlib.import_module(unique)
    assert [1] == seen


def test_told_once_over_reload_and_second_import(unique, write):
    """Neither a reload nor an import after removal calls again."""
    write(unique)
    seen = []
    when_imported(unique, lambda: seen.append(1))
    importlib.reload(importlib.import_module(unique))
    del sys.modules[unique]
    importlib.import_module(unique)
    assert [1] == seen


def test_several_calls_come_in_order(unique, write):
    """Everyone who waits is told, in the order in which they asked."""
    write(unique)
    seen = []
    for number in range(3):
        when_imported(unique, lambda number=number: seen.append(number))
    importlib.import_module(unique)
    assert [0, 1, 2] == seen


def test_submodule_waits_for_itself(unique, write):
    """Importing a package tells nothing about its submodule."""
    write(f"{unique}.__init__")
    write(f"{unique}.sub")
    seen = []
    when_imported(f"{unique}.sub", lambda: seen.append("sub"))
    when_imported(unique, lambda: seen.append("package"))
    importlib.import_module(unique)
    assert ["package"] == seen
    importlib.import_module(f"{unique}.sub")
    assert ["package", "sub"] == seen


def test_package_that_imports_its_submodule(unique, write):
    """A submodule that its package imports is told of first: the package is not complete yet."""
    write(f"{unique}.__init__", "from . import sub\ndone = True\n")
    write(f"{unique}.sub")
    seen = []
    when_imported(unique, lambda: seen.append(sys.modules[unique].done))
    when_imported(f"{unique}.sub", lambda: seen.append(hasattr(sys.modules[unique], "done")))
    importlib.import_module(unique)
    assert [False, True] == seen


def test_failing_import_is_retried(unique, write):
    """After an import that raised, the next one that succeeds tells."""
    write(unique, "import sys\nif not hasattr(sys, 'ctxcarry_let_pass'): raise ValueError('no')\n")
    seen = []
    when_imported(unique, lambda: seen.append(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            importlib.import_module(unique)
    assert [] == seen
    sys.ctxcarry_let_pass = True
    try:
        importlib.import_module(unique)
    finally:
        del sys.ctxcarry_let_pass
    assert [1] == seen


def test_missing_module_stays_missing(unique):
    """A module that does not exist is still a ModuleNotFoundError."""
    when_imported(unique, lambda: pytest.fail("there is nothing to import"))
    with pytest.raises(ModuleNotFoundError, match=unique):
        importlib.import_module(unique)


def test_loader_and_spec_are_the_modules_own(unique, write):
    """Nothing of the hook stays on the module, its loader or its spec."""
    write(unique, "value = 1\n")
    when_imported(unique, lambda: None)
    module = importlib.import_module(unique)
    assert SourceFileLoader is type(module.__loader__)
    assert module.__loader__ is module.__spec__.loader
    assert "exec_module" not in vars(module.__loader__)
    assert "value = 1\n" == module.__loader__.get_source(unique)


def test_concurrent_imports_tell_once(unique, write):
    """Threads that import one module together cause one call."""
    write(unique, "value = sum(range(10000))\n")
    seen = []
    when_imported(unique, lambda: seen.append(sys.modules[unique].value))
    together = threading.Barrier(8)

    def load():
        together.wait(TIMEOUT)
        importlib.import_module(unique)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert [49995000] == seen


def test_asked_for_by_the_module_itself(unique, write):
    """A module that is being imported, and so imports us, is told of when it is complete."""
    asker = f"{unique}_asker"
    write(
        asker,
        f"from ctxcarry._imports import when_imported\nimport sys\nseen = []\n"
        f"when_imported({unique!r}, lambda: seen.append(sys.modules[{unique!r}].last))\n",
    )
    write(unique, f"import {asker}\nlast = 1\n")
    importlib.import_module(unique)
    importlib.import_module("json")  # give a late call its chance
    when_imported(unique, lambda: None)
    assert [1] == sys.modules[asker].seen


def test_asked_for_while_another_thread_imports(unique, write):
    """A module half imported by another thread is told of when that thread has finished."""
    write(
        unique,
        "import sys\nsys.ctxcarry_half.set()\nassert sys.ctxcarry_go.wait(30)\nlast = 1\n",
    )
    half, go = sys.ctxcarry_half, sys.ctxcarry_go = threading.Event(), threading.Event()
    thread = threading.Thread(target=importlib.import_module, args=(unique,))
    thread.start()
    try:
        assert half.wait(TIMEOUT)
        seen, told = [], threading.Event()

        def call():
            seen.append(sys.modules[unique].last)
            told.set()

        when_imported(unique, call)
        assert [] == seen
    finally:
        go.set()
        thread.join(TIMEOUT)
        del sys.ctxcarry_half, sys.ctxcarry_go
    assert told.wait(5)
    assert [1] == seen


def test_loader_shared_by_two_modules(unique, tmp_path, monkeypatch):
    """Modules of one zip file share a loader: only the awaited one is told of."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr(f"{unique}.py", "")
        content.writestr(f"{unique}_other.py", "")
    monkeypatch.syspath_prepend(str(archive))
    seen = []
    when_imported(unique, lambda: seen.append(unique in sys.modules))
    importlib.util.find_spec(unique)
    importlib.import_module(f"{unique}_other")
    assert [] == seen
    importlib.import_module(unique)
    assert [True] == seen


def test_loader_that_takes_no_attributes(unique):
    """A module comes from a loader with slots as it would without us."""

    class Loader:
        __slots__ = ()

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            module.value = 1

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_loader(name, Loader()) if name == unique else None

    seen = []
    when_imported(unique, lambda: seen.append(sys.modules[unique].value))
    sys.meta_path.append(Finder)
    try:
        assert 1 == importlib.import_module(unique).value
    finally:
        sys.meta_path.remove(Finder)
    assert [1] == seen


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_the_hook_of_wrapt(ours_first, unique, write):
    """Wrapt's hook on the same module and ours are both called, once, in either order."""
    import wrapt

    write(unique, "last = 1\n")
    seen = []

    def wait_here():
        when_imported(unique, lambda: seen.append("ours"))

    wait_here()
    wrapt.register_post_import_hook(lambda module: seen.append("theirs"), unique)
    finders = list(sys.meta_path)
    theirs = next(f for f in finders if type(f).__name__ == "ImportHookFinder")
    pair = [_imports._finder, theirs] if ours_first else [theirs, _imports._finder]
    sys.meta_path[:] = [*pair, *(f for f in finders if f not in pair)]
    try:
        assert 1 == importlib.import_module(unique).last
    finally:
        sys.meta_path[:] = finders
    assert ["ours", "theirs"] == sorted(seen)


def test_wrong_import_hook_of_others_is_survived(unique, write):
    """A finder of the old kind, without ``find_spec``, does not disturb."""
    write(unique)
    old = object()
    seen = []
    when_imported(unique, lambda: seen.append(1))
    spec_of = _imports._finder._from_others
    sys.meta_path.append(old)
    try:
        assert unique == spec_of(unique, None, None).name
    finally:
        sys.meta_path.remove(old)
    importlib.import_module(unique)
    assert [1] == seen
