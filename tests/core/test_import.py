"""`import ctxcarry`: what it loads, and what it offers."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import ctxcarry

ROOT = Path(ctxcarry.__file__).resolve().parents[1]

HEAVY = {
    "torch",
    "triton",
    "ray",
    "wrapt",
    "contextvars_extras",
    "importlib.metadata",
    "asyncio",
    "spmd_types",
    "exceptiongroup",
}

DESIGNED = {
    "Carrier",
    "CarrierError",
    "ContextMismatchError",
    "ContextVarCarrier",
    "ContextVarsRegistryCarrier",
    "CtxCarryError",
    "DuplicateCarrierError",
    "LeakError",
    "NotPortableError",
    "Registry",
    "Snapshot",
    "ThreadLocalCarrier",
    "UnknownCarrierError",
    "ValueCarrier",
    "WireError",
    "bind",
    "capture",
    "carriers",
    "carry_context",
    "executor",
    "install",
    "installed",
    "load_entry_points",
    "policy",
    "register",
    "registry",
    "suppress",
    "uninstall",
    "unregister",
    "wrap_executor",
}


def run_python(code, *options):
    """Run `code` in a new interpreter that can import ctxcarry; return what it prints."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def loaded_by(code):
    """Return the heavy modules that `code` loads in a new interpreter."""
    program = (
        f"import sys; before = set(sys.modules); {code}; "
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    return HEAVY.intersection(run_python(program).split())


def isort_style(name):
    """Return the key by which ruff sorts ``__all__``."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def test_import_loads_nothing_heavy():
    """Importing the package loads no framework and nothing that is slow to import."""
    assert set() == loaded_by("import ctxcarry")


def test_use_loads_nothing_heavy():
    """Capturing, binding, policies and executors work without any heavy module either."""
    code = (
        "import ctxcarry, contextvars; v = contextvars.ContextVar('v'); v.set(1); "
        "pool = ctxcarry.executor(1); assert pool.submit(v.get).result(30) == 1; pool.shutdown(); "
        "s = ctxcarry.capture(); assert s.run(v.get) == ctxcarry.bind(v.get)() == 1; s.explain(); "
        "p = ctxcarry.suppress(); p.__enter__(); ctxcarry.capture(); p.__exit__(None, None, None); "
        "a = s.active(); a.__enter__(); a.__exit__(None, None, None)"
    )
    assert set() == loaded_by(code)


def test_import_warns_of_nothing():
    """The package imports cleanly when every warning is an error."""
    assert "" == run_python("import ctxcarry", "-W", "error")


def test_lazy_name_loads_wrapt_when_asked_for():
    """`wrap_executor` is there, and only asking for it loads wrapt."""
    code = (
        "import sys, ctxcarry; assert 'wrapt' not in sys.modules; "
        "print(ctxcarry.wrap_executor.__name__, 'wrapt' in sys.modules)"
    )
    assert "wrap_executor True\n" == run_python(code)


def test_star_import_gives_all_names():
    """``from ctxcarry import *`` gives each name of ``__all__``."""
    code = "from ctxcarry import *; import ctxcarry; print(set(ctxcarry.__all__) - set(globals()))"
    assert "set()\n" == run_python(code)


def test_all_is_a_sorted_tuple():
    """``__all__`` is a tuple in the order in which ruff sorts it, each name once."""
    assert tuple is type(ctxcarry.__all__)
    assert sorted(set(ctxcarry.__all__), key=isort_style) == list(ctxcarry.__all__)


@pytest.mark.parametrize("name", ctxcarry.__all__)
def test_name_exists(name):
    """Each name of ``__all__`` exists, and ``dir()`` lists it."""
    assert hasattr(ctxcarry, name)
    assert name in dir(ctxcarry)


def test_nothing_public_is_missing_from_all():
    """Whatever the package holds without an underscore is in ``__all__``."""
    public = {
        name
        for name, value in vars(ctxcarry).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name not in {"annotations", "TYPE_CHECKING"}
    }
    assert set() == public - set(ctxcarry.__all__)


def test_names_of_the_design_exist():
    """Each public name of the design's core is offered."""
    assert set() == DESIGNED - set(ctxcarry.__all__)


def test_unknown_attribute():
    """An attribute that does not exist is an AttributeError that names it."""
    with pytest.raises(AttributeError, match="captur"):
        ctxcarry.captur  # noqa: B018 - the access is the test


def test_package_is_typed():
    """The marker that tells type checkers to use the annotations is there."""
    assert (Path(ctxcarry.__file__).parent / "py.typed").is_file()


def test_version_is_that_of_the_project():
    """``__version__`` and pyproject.toml agree."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.search(r'^version = "(.+)"$', project, re.MULTILINE)[1] == ctxcarry.__version__


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ctxcarry.CarrierError, RuntimeError),
        (ctxcarry.DuplicateCarrierError, ValueError),
        (ctxcarry.UnknownCarrierError, LookupError),
        (ctxcarry.NotPortableError, TypeError),
        (ctxcarry.WireError, ValueError),
        (ctxcarry.ContextMismatchError, RuntimeError),
        (ctxcarry.LeakError, RuntimeError),
    ],
)
def test_errors_have_a_common_base_and_a_builtin_one(error, builtin):
    """Each error is caught by CtxCarryError and by the builtin that fits, and says why."""
    assert issubclass(error, ctxcarry.CtxCarryError)
    assert issubclass(error, builtin)
    assert error.__doc__


def test_carrier_error_pickles():
    """A CarrierError crosses a process boundary with its attributes."""
    import pickle

    error = pickle.loads(pickle.dumps(ctxcarry.CarrierError("a.b", "apply", "no")))  # noqa: S301
    assert ("a.b", "apply", "no") == (error.carrier, error.stage, error.reason)
    assert "carrier 'a.b' failed to apply its context: no" == str(error)


BEFORE, AFTER = "import torch, ctxcarry", "import ctxcarry, torch"


@pytest.mark.parametrize("order", [BEFORE, AFTER])
def test_broken_framework_does_not_break_its_import(order, tmp_path):
    """A framework that lacks what its carriers need is imported all the same, with a warning."""
    (tmp_path / "torch.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        f"    {order}\n"
        "import ctxcarry\n"
        "print(*{w.category.__name__ for w in caught})\n"
        "try:\n"
        "    ctxcarry.capture(only='torch.grad_mode')\n"
        "except ctxcarry.CarrierError as error:\n"
        "    print(error.carrier, error.stage)\n"
        "assert ctxcarry.capture().run(int) == 0\n"
    )
    assert ["CtxCarryWarning", "torch.grad_mode", "capture"] == run_python(code).split()
