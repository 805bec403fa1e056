"""Contexts that cannot travel: the call says which and what to do, as each carrier has it."""

import threading
import warnings

import pytest
import ray
import ray_work as work

import ctxcarry
from ctxcarry.errors import CtxCarryWarning, NotPortableError

pytestmark = pytest.mark.usefixtures("cluster")


class OwnCarrier:
    """A carrier that knows nothing of other processes."""

    def __init__(self, how):
        self.name = "tests.ray.own"
        self.not_portable = how

    def capture(self):
        """Return something."""
        return "something"

    def apply(self, state):
        """Change nothing."""
        return ctxcarry.UNCHANGED

    def undo(self, token):
        """Have nothing to undo."""


def value_carrier(how):
    """Return a carrier of a value that cannot be pickled."""
    lock = threading.Lock()
    carrier = ctxcarry.ValueCarrier("tests.ray.lock", lambda: lock, lambda value: None)
    carrier.not_portable = how
    return carrier


KINDS = {"value": value_carrier, "own": OwnCarrier}


@pytest.fixture(params=KINDS)
def registered(request):
    """Return a function that registers a carrier of each kind, with what it does about it."""
    names = []

    def register(how):
        names.append(ctxcarry.register(KINDS[request.param](how)).name)
        return names[-1]

    yield register
    for name in names:
        ctxcarry.unregister(name)


class Counter:
    """An actor that counts calls."""

    def __init__(self):
        self.calls = 0

    def count(self):
        """Return how many calls there were, and the variable."""
        self.calls += 1
        return self.calls, work.read()


def test_raise(registered, made, tmp_path):
    """With "raise" the call is an error that names the carrier and the fix; nothing is sent."""
    marker = tmp_path / "marker"

    @ctxcarry.ray.remote
    def task():
        marker.touch()
        return work.read()

    cls = ctxcarry.ray.remote(Counter)
    actor = made(cls)
    plain = ctxcarry.ray.wrap(made(ray.remote(Counter)))
    name = registered("raise")
    work.VARIABLE.set("there")
    for call in (task.remote, cls.remote, actor.count.remote, plain.count.remote):
        with pytest.raises(NotPortableError) as caught:
            call()
        assert f"ctxcarry.suppress({name!r})" in str(caught.value)
    with ctxcarry.suppress(name):
        assert [(1, "there")] * 2 == ray.get([actor.count.remote(), plain.count.remote()])
        assert not marker.exists()
        assert "there" == ray.get(task.remote())
    assert marker.exists()


def test_warn(registered, made):
    """With "warn" the call says which context stays behind, and carries the others."""
    task, actor = ctxcarry.ray.remote(work.read), made(ctxcarry.ray.remote(work.Reader))
    name = registered("warn")
    work.VARIABLE.set("there")
    for call in (task.remote, actor.read.remote):
        with pytest.warns(CtxCarryWarning, match=f"{name}.*suppress"):
            reference = call()
        assert "there" == ray.get(reference)


def test_skip(registered, made):
    """With "skip" the context stays behind without a word, and the others are carried."""
    task, actor = ctxcarry.ray.remote(work.read), made(ctxcarry.ray.remote(work.Reader))
    registered("skip")
    work.VARIABLE.set("there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ["there", "there"] == ray.get([task.remote(), actor.read.remote()])


def test_a_variable_that_cannot_be_pickled():
    """A ContextVar whose value cannot be pickled stays behind; the others are carried."""
    task = ctxcarry.ray.remote(work.both)
    work.VARIABLE.set("there")
    work.OTHER.set(threading.Lock())
    try:
        assert ("there", "unset") == ray.get(task.remote())
    finally:
        work.OTHER.set("unset")
