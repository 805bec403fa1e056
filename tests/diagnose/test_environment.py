"""Which frameworks doctor finds, and how it tells of the others."""

import sys
import warnings

import pytest

from ctxcarry.diagnose import environment
from ctxcarry.diagnose.environment import Absent, import_frameworks, versions


@pytest.fixture
def catalog(monkeypatch, tmp_path):
    """Return a function that replaces the catalog by modules whose source is given."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source, "utf-8")
        return tmp_path

    yield make
    for name in [name for name in sys.modules if name.startswith("doctor_test_")]:
        del sys.modules[name]


def frameworks(monkeypatch, *modules):
    """Return what `import_frameworks` says of `modules`."""
    entries = tuple((module, "file", (f"{module}.context",)) for module in modules)
    monkeypatch.setattr(environment, "CATALOG", entries)
    return import_frameworks()


def test_installed_framework_is_imported(monkeypatch, catalog):
    """A framework that is installed is imported, and nothing is said of it."""
    catalog(doctor_test_here="")
    assert frameworks(monkeypatch, "doctor_test_here") == ((), {})
    assert "doctor_test_here" in sys.modules


def test_absent_framework_is_told_once(monkeypatch):
    """A framework that is not installed is absent, whatever its modules, with the fix."""
    absent, lacking = frameworks(monkeypatch, "doctor_test_no", "doctor_test_no.inner")
    fix = "pip install doctor_test_no"
    assert absent == (Absent("doctor_test_no", "is not installed", fix),)
    assert not lacking


def test_missing_part_of_a_framework_is_unavailable(monkeypatch, catalog):
    """A context whose module this version has not is unavailable; the framework is there."""
    package = catalog() / "doctor_test_package"
    package.mkdir()
    (package / "__init__.py").touch()
    absent, lacking = frameworks(monkeypatch, "doctor_test_package", "doctor_test_package.new")
    assert absent == ()
    reason = "this doctor_test_package has no module doctor_test_package.new"
    assert lacking == {"doctor_test_package.new.context": reason}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import doctor_test_gone", "ModuleNotFoundError: No module named 'doctor_test_gone'"),
        ("raise OSError('libfoo.so: not found')", "OSError: libfoo.so: not found"),
    ],
)
def test_broken_framework_is_told(monkeypatch, catalog, source, text):
    """A framework whose import fails is absent with its error, and hides no other."""
    catalog(doctor_test_bad=source, doctor_test_good="")
    absent, _ = frameworks(monkeypatch, "doctor_test_bad", "doctor_test_good")
    reason = f"cannot be imported (import doctor_test_bad: {text})"
    assert absent == (Absent("doctor_test_bad", reason, None),)
    assert "doctor_test_good" in sys.modules


NUMPY = """import warnings
warnings.warn("Failed to initialize NumPy: No module named 'numpy' (Triggered internally)")
"""


def test_what_torch_says_without_numpy_is_left_out(monkeypatch, catalog):
    """The warning of a torch without NumPy is silent, and every other one is not."""
    catalog(doctor_test_quiet=NUMPY, doctor_test_loud="import warnings; warnings.warn('mind')")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        frameworks(monkeypatch, "doctor_test_quiet", "doctor_test_loud")
    assert ["mind"] == [str(w.message) for w in warned]


def test_versions_have_every_key():
    """A distribution that is not installed has None, so that the keys are always the same."""
    found = versions()
    assert list(found)[:2] == ["python", "ctxcarry"]
    assert {"torch", "triton", "spmd-types", "wrapt", "torchtitan", "ray"} <= set(found)
