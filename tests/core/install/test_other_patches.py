"""`install` and `uninstall` over and under the patches of others, in any order."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import wrapt
from install_subjects import submitted

from ctxcarry import install, installed, uninstall


@pytest.fixture
def put():
    """Return a function that replaces a method of ThreadPoolExecutor, taken back at the end."""
    before = {n: vars(ThreadPoolExecutor).get(n) for n in ("submit", "map")}

    def put(name, function):
        setattr(ThreadPoolExecutor, name, function)

    yield put
    uninstall()
    for name, function in before.items():
        if function is not None:
            setattr(ThreadPoolExecutor, name, function)
        elif name in vars(ThreadPoolExecutor):
            delattr(ThreadPoolExecutor, name)


def theirs(original, calls, *, linked):
    """Return somebody else's patch of `original`, with or without ``__wrapped__``."""

    def patched(self, /, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    return functools.wraps(original)(patched) if linked else patched


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
@pytest.mark.parametrize("name", ["submit", "map"])
def test_patch_of_others_on_top(name, linked, put):
    """Under another patch, uninstalling makes ours inert and leaves theirs (trap 11)."""
    calls = []
    install("executor")
    on_top = theirs(getattr(ThreadPoolExecutor, name), calls, linked=linked)
    put(name, on_top)
    assert "near" == submitted()
    assert calls
    uninstall("executor")
    assert on_top is vars(ThreadPoolExecutor)[name]
    calls.clear()
    assert "default" == submitted()
    assert calls


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
@pytest.mark.parametrize("name", ["submit", "map"])
def test_installed_again_under_a_patch_of_others(name, linked, put):
    """Installed again, ours carries again, once; and it can be uninstalled again."""
    calls = []
    install("executor")
    beneath = getattr(ThreadPoolExecutor, name)
    put(name, theirs(beneath, calls, linked=linked))
    uninstall("executor")
    for _ in range(2):
        install("executor")
        assert ("executor",) == installed()
        assert "near" == submitted()
        uninstall("executor")
        assert "default" == submitted()
    assert calls


def test_patch_of_others_on_top_is_taken_off_later(put):
    """When theirs goes after ours was uninstalled, what it puts back passes calls through."""
    original = vars(ThreadPoolExecutor)["submit"]
    install("executor")
    ours = vars(ThreadPoolExecutor)["submit"]
    put("submit", theirs(ours, [], linked=True))
    uninstall("executor")
    put("submit", ours)  # as their uninstall does
    assert "default" == submitted()
    install("executor")
    assert "near" == submitted()
    uninstall("executor")
    assert "default" == submitted()
    assert original is vars(ThreadPoolExecutor)["submit"]


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
def test_patch_of_others_beneath(linked, put):
    """Over another patch, ours comes off and theirs is what is left."""
    calls = []
    beneath = theirs(vars(ThreadPoolExecutor)["submit"], calls, linked=linked)
    put("submit", beneath)
    install("executor")
    assert "near" == submitted()
    assert calls
    uninstall("executor")
    assert beneath is vars(ThreadPoolExecutor)["submit"]


def test_patch_of_others_beneath_is_taken_off_first(put):
    """When theirs goes and takes ours along, installing again brings ours back."""
    original = vars(ThreadPoolExecutor)["submit"]
    put("submit", theirs(original, [], linked=True))
    install("executor")
    put("submit", original)  # as their uninstall does
    install("executor")
    assert "near" == submitted()
    uninstall("executor")
    assert original is vars(ThreadPoolExecutor)["submit"]


def test_patch_made_with_wrapt_on_top(put):
    """A patch made with wrapt, as instrumentations do, is recognised as being on top."""
    install("executor")
    calls = []

    def wrapper(wrapped, instance, args, kwargs):
        calls.append(1)
        return wrapped(*args, **kwargs)

    put("submit", wrapt.FunctionWrapper(vars(ThreadPoolExecutor)["submit"], wrapper))
    on_top = vars(ThreadPoolExecutor)["submit"]
    uninstall("executor")
    assert on_top is vars(ThreadPoolExecutor)["submit"]
    assert "default" == submitted()
    install("executor")
    assert "near" == submitted()
    assert on_top is vars(ThreadPoolExecutor)["submit"]


def test_subclass_patch_is_left_alone():
    """Uninstalling does not touch methods that a subclass has of its own."""

    class Own(ThreadPoolExecutor):
        def map(self, fn, *iterables, **kwargs):
            return super().map(fn, *iterables, **kwargs)

    before = Own.map
    install("executor")
    uninstall("executor")
    assert before is Own.map
    assert "map" not in vars(ThreadPoolExecutor)
