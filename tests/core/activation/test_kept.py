"""What exceptions, results and workers keep alive of what a snapshot held."""

import sys
import weakref
from contextvars import ContextVar

import pytest
from activation_subjects import HOWS, Boom, Scripted

from ctxcarry import CarrierError, Registry, ThreadLocalCarrier

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class Big:
    """Something that should not be kept."""


variable = ContextVar("variable")


@pytest.fixture
def heavy(registry, local):
    """Return a function: weak references to what a snapshot holds, and the snapshot."""

    def make(**fails):
        registry.register(Scripted("first", []))
        registry.register(Scripted("second", [], **fails))
        slots = [c for c in registry.carriers() if type(c) is Scripted]
        bigs = [Big() for _ in range(4)]
        token = variable.set(bigs[0])
        local.value = bigs[1]
        slots[0].value, slots[1].value = bigs[2:]
        snapshot = registry.capture()
        variable.reset(token)
        local.value = slots[0].value = slots[1].value = "far"
        return [weakref.ref(big) for big in bigs], snapshot

    return make


def kept_from(snapshot, how, work):
    """Activate `snapshot` around failing `work`, and return the exception alone."""
    try:
        if how == "active":
            with snapshot.active():
                work()
        elif how == "run":
            snapshot.run(work)
        else:
            snapshot.wrap(work)()
    except BaseException as error:
        # This frame is in the traceback as the user's own is.
        del snapshot
        return error
    pytest.fail("nothing was raised")


def failing():
    """Fail as a task does."""
    raise ValueError("mine")


@pytest.mark.parametrize("how", HOWS)
def test_users_exception_keeps_no_state(how, heavy, is_collected):
    """An exception of the work does not keep alive what the snapshot held (trap 8)."""
    references, snapshot = heavy()
    error = kept_from(snapshot, how, failing)
    del snapshot
    assert [True] * 4 == [is_collected(r) for r in references]
    assert "mine" == str(error)


@pytest.mark.parametrize("how", HOWS)
def test_apply_error_keeps_no_other_state(how, heavy, is_collected):
    """A CarrierError of apply keeps nothing of the carriers that did not fail."""
    references, snapshot = heavy(apply=Boom)
    error = kept_from(snapshot, how, failing)
    del snapshot
    assert isinstance(error, CarrierError)
    # The failing carrier's own frame holds the state that it was given.
    assert [True] * 3 == [is_collected(r) for r in references[:3]]


@pytest.mark.parametrize("how", HOWS)
def test_undo_error_keeps_no_state(how, heavy, is_collected):
    """An ExceptionGroup of undo keeps nothing that the snapshot held."""
    references, snapshot = heavy(undo=Boom)
    slot = next(c for c in snapshot._plan.steps if c.name == "second").carrier
    error = kept_from(snapshot, how, lambda: None)
    del snapshot
    slot.value = "far"  # it could not be undone, so it was still there
    assert isinstance(error, ExceptionGroup)
    assert [True] * 4 == [is_collected(r) for r in references]


def test_returned_result_keeps_no_state(heavy, is_collected):
    """After a run that returned, only the snapshot itself held the states."""
    references, snapshot = heavy()
    assert [] == snapshot.run(list)
    with snapshot.active():
        pass
    active = snapshot.active()
    with active:
        pass
    del snapshot, active
    assert [True] * 4 == [is_collected(r) for r in references]


def test_worker_keeps_nothing_of_the_former(registry, local, is_collected):
    """What was current before is held while the work runs, and not afterwards."""
    local.value = "near"
    snapshot = registry.capture()
    big = Big()
    local.value = big
    reference = weakref.ref(big)
    del big
    error = kept_from(snapshot, "run", failing)
    local.value = None
    assert is_collected(reference)
    assert "mine" == str(error)


def test_thread_local_carrier_of_one_state(is_collected):
    """A single carrier without ContextVars keeps nothing either."""
    import threading

    local = threading.local()
    registry = Registry()
    registry.register(ThreadLocalCarrier(local, name="l"))
    local.value = Big()
    reference = weakref.ref(local.value)
    snapshot = registry.capture()
    del local.value
    error = kept_from(snapshot, "run", failing)
    del snapshot
    assert is_collected(reference)
    assert "mine" == str(error)
