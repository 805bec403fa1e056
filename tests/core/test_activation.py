"""Activation is all or nothing, undoing is thorough, and neither hides the user's exception."""

import logging
import sys
import weakref
from contextvars import ContextVar

import pytest

from ctxcarry import MISSING, UNCHANGED, CarrierError, Registry, ThreadLocalCarrier

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class Boom(Exception):
    """What a carrier of these tests raises."""


class Scripted:
    """A carrier that logs its calls and fails where it is told to."""

    def __init__(self, name, log, **fails):
        self.name = name
        self.log = log
        self.fails = fails
        self.value = "far"

    def fail(self, stage):
        self.log.append((stage, self.name))
        if stage in self.fails:
            error = self.fails[stage]
            raise error if isinstance(error, BaseException) else error(f"{stage} {self.name}")

    def capture(self):
        if "capture" in self.fails:
            self.fail("capture")
        return self.value

    def apply(self, state):
        self.fail("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.fail("undo")
        self.value = token


class Putting(Scripted):
    """The same, through the short cut: one function that sets any state."""

    def put(self, state):
        near = self.value == "far"
        self.fail("apply" if near else "undo")
        self.value = state


@pytest.fixture(params=[Scripted, Putting], ids=["apply", "put"])
def kind(request):
    """Return a class of scripted carriers."""
    return request.param


class Scene:
    """Carriers a, b, c, d, and ways to activate a snapshot of them."""

    def __init__(self, kind, **fails):
        self.log = []
        self.registry = Registry()
        self.carriers = {n: kind(n, self.log, **fails.get(n, {})) for n in "abcd"}
        for carrier in self.carriers.values():
            self.registry.register(carrier)
            carrier.value = f"near {carrier.name}"
        self.snapshot = self.registry.capture()
        for carrier in self.carriers.values():
            carrier.value = "far"

    def values(self):
        return {name: carrier.value for name, carrier in self.carriers.items()}

    def activate(self, how, fn):
        if how == "active":
            with self.snapshot.active():
                return fn()
        return (self.snapshot.run if how == "run" else self.snapshot.wrap(fn))(
            *([fn] if how == "run" else [])
        )


HOWS = ["run", "wrap", "active"]
FAR = dict.fromkeys("abcd", "far")
NEAR = {name: f"near {name}" for name in "abcd"}


@pytest.mark.parametrize("how", HOWS)
def test_order_and_reverse_order(how, kind):
    """Carriers are applied in order and undone in reverse, around the work."""
    scene = Scene(kind)
    seen = scene.activate(how, lambda: (scene.log.append("work"), scene.values())[1])
    applied = [("apply", name) for name in "abcd"]
    undone = [("undo", name) for name in "dcba"]
    assert [*applied, "work", *undone] == scene.log
    assert NEAR == seen
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("failing", "abcd")
def test_apply_fails(how, kind, failing):
    """What came before is undone in reverse, the work does not start, the carrier is named."""
    scene = Scene(kind, **{failing: {"apply": Boom}})
    with pytest.raises(CarrierError, match=f"'{failing}' failed to apply") as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    error = caught.value
    assert (failing, "apply") == (error.carrier, error.stage)
    assert isinstance(error.__cause__, Boom)
    assert f"Boom: apply {failing}" in str(error)
    before = "abcd"[: "abcd".index(failing)]
    expected = [("apply", n) for n in (*before, failing)] + [("undo", n) for n in reversed(before)]
    assert expected == scene.log
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_apply_is_interrupted(how, kind, interrupt):
    """An interrupt stays what it is, and everything is undone."""
    scene = Scene(kind, c={"apply": interrupt})
    with pytest.raises(interrupt):
        scene.activate(how, lambda: pytest.fail("started"))
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_apply_fails_and_so_does_its_undoing(how, kind, caplog):
    """The first failure is raised; those of undoing are noted on it, and all undos are tried."""
    scene = Scene(kind, a={"undo": Boom}, b={"undo": Boom}, d={"apply": Boom})
    with pytest.raises(CarrierError) as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    assert ("d", "apply") == (caught.value.carrier, caught.value.stage)
    notes = "\n".join(caught.value.__notes__)
    assert "'b' failed to undo" in notes
    assert "'a' failed to undo" in notes
    assert {**FAR, "a": "near a", "b": "near b"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_capture_fails_on_the_far_side(how):
    """A carrier that cannot say what is current is named, and what came before it is undone."""
    scene = Scene(Putting)
    scene.carriers["c"].fails["capture"] = Boom
    with pytest.raises(CarrierError, match="'c' failed") as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    assert "c" == caught.value.carrier
    assert isinstance(caught.value.__cause__, Boom)
    assert FAR == scene.values()


@pytest.mark.parametrize("failing", "ad")
def test_capture_fails_on_the_near_side(failing, kind):
    """A carrier that cannot capture is named, and nothing has happened."""
    scene = Scene(kind)
    scene.carriers[failing].fails["capture"] = Boom
    scene.log.clear()
    with pytest.raises(CarrierError, match=f"'{failing}' failed to capture") as caught:
        scene.registry.capture()
    assert (failing, "capture") == (caught.value.carrier, caught.value.stage)
    assert isinstance(caught.value.__cause__, Boom)
    assert {("capture", failing)} == set(scene.log)


def test_capture_fails_once():
    """A carrier that fails at its first call only is still the one that is named."""

    class Flaky(Scripted):
        def capture(self):
            self.fails, fails = {}, self.fails
            if fails:
                raise Boom
            return self.value

    registry, log = Registry(), []
    for name in "ab":
        registry.register(Scripted(name, log))
    registry.register(Flaky("flaky", log, capture=Boom))
    registry.register(Scripted("d", log))
    with pytest.raises(CarrierError) as caught:
        registry.capture()
    assert isinstance(caught.value.__cause__, Boom)
    assert "flaky" == caught.value.carrier


def test_interrupted_capture_stays_an_interrupt():
    """A KeyboardInterrupt while capturing is not turned into something else."""
    scene = Scene(Scripted)
    scene.carriers["b"].fails["capture"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        scene.registry.capture()


@pytest.mark.parametrize("how", HOWS)
def test_undo_fails(how, kind):
    """All undos are attempted; then an ExceptionGroup has one CarrierError for each that failed."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": Boom})
    with pytest.raises(ExceptionGroup, match="'d', 'b'") as caught:
        scene.activate(how, lambda: "result")
    errors = caught.value.exceptions
    assert [("d", "undo"), ("b", "undo")] == [(e.carrier, e.stage) for e in errors]
    assert all(type(e) is CarrierError and isinstance(e.__cause__, Boom) for e in errors)
    assert [("undo", name) for name in "dcba"] == scene.log[-4:]
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("mine", [ValueError("mine"), KeyboardInterrupt("mine")], ids=repr)
def test_undo_fails_under_the_users_exception(how, kind, mine, caplog):
    """The user's exception is what is raised; each failure is a note on it and a log record."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": Boom})
    mine = type(mine)("mine")

    def work():
        raise mine

    with caplog.at_level(logging.ERROR, "ctxcarry"), pytest.raises(type(mine)) as caught:
        scene.activate(how, work)
    assert mine is caught.value
    d, b = mine.__notes__
    assert "'d' failed to undo" in d
    assert "'b' failed to undo" in b
    assert 2 == len(caplog.records)
    assert {"ctxcarry"} == {record.name for record in caplog.records}
    assert all(record.exc_info for record in caplog.records)
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_notes_are_added_to_notes(how, caplog):
    """Notes that the user's exception has already stay first."""
    scene = Scene(Scripted, b={"undo": Boom})
    mine = ValueError("mine")
    mine.__notes__ = ["first"]

    def work():
        raise mine

    with pytest.raises(ValueError, match="mine"):
        scene.activate(how, work)
    assert ("first", 2) == (mine.__notes__[0], len(mine.__notes__))


@pytest.mark.parametrize("how", HOWS)
def test_undo_is_interrupted(how, kind):
    """An interrupt in an undo is raised as itself after the other undos have run."""
    scene = Scene(kind, c={"undo": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        scene.activate(how, lambda: "result")
    assert {**FAR, "c": "near c"} == scene.values()


def told(error):
    """Return every exception that `error` tells about: itself, its chain, its group, its notes."""
    found, todo = [], [error]
    while todo:
        one = todo.pop()
        if one is None or one in found:
            continue
        found.append(one)
        todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found, "\n".join(note for e in found for note in getattr(e, "__notes__", ()))


@pytest.mark.parametrize("how", HOWS)
def test_interrupted_undo_beside_a_failing_one(how, kind):
    """An interrupt is not lost because another carrier's undo failed as well."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": KeyboardInterrupt})
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is asked below
        scene.activate(how, lambda: "result")
    assert isinstance(caught.value, KeyboardInterrupt)
    found, notes = told(caught.value)
    assert "'b' failed to undo" in "\n".join([notes, *map(str, found)])
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_interrupted_undo_under_the_users_exception(how, kind):
    """An interrupt in an undo and the user's exception: neither is lost."""
    scene = Scene(kind, c={"undo": KeyboardInterrupt})
    mine = ValueError("mine")

    def work():
        raise mine

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is asked below
        scene.activate(how, work)
    found, notes = told(caught.value)
    assert mine in found
    assert any(isinstance(e, KeyboardInterrupt) for e in found) or "KeyboardInterrupt" in notes
    assert {**FAR, "c": "near c"} == scene.values()


def test_unchanged_is_not_undone():
    """A carrier that says UNCHANGED is not asked to undo."""

    class Steady(Scripted):
        def apply(self, state):
            self.log.append(("apply", self.name))
            return UNCHANGED

    registry, log = Registry(), []
    carrier = registry.register(Steady("steady", log))
    carrier.value = "near"
    snapshot = registry.capture()
    carrier.value = "far"
    snapshot.run(lambda: log.append("work"))
    assert [("apply", "steady"), "work"] == log


@pytest.mark.parametrize("token", [None, MISSING, 0, ()], ids=repr)
def test_any_token_is_given_back(token):
    """Whatever apply returned, but UNCHANGED, is what undo gets."""

    class Tokens(Scripted):
        def apply(self, state):
            return token

        def undo(self, given):
            self.log.append(given)

    registry, log = Registry(), []
    carrier = registry.register(Tokens("tokens", log))
    carrier.value = "near"
    snapshot = registry.capture()
    carrier.value = "far"
    snapshot.run(int)
    assert [token] == log
    assert token is log[0]


def test_carrier_gets_missing():
    """A context that was not set is applied as MISSING, never as None."""
    registry, log = Registry(), []
    carrier = registry.register(Scripted("a", log))
    carrier.value = MISSING
    snapshot = registry.capture()
    carrier.value = None
    assert MISSING is snapshot.run(lambda: carrier.value)
    assert carrier.value is None


def test_failing_work_that_catches_its_own_failure(kind):
    """A failed activation inside another one undoes the inner one only."""
    outer, inner = Scene(kind), Scene(kind, c={"apply": Boom})

    def work():
        with pytest.raises(CarrierError):
            inner.snapshot.run(int)
        return outer.values(), inner.values()

    assert (NEAR, FAR) == outer.snapshot.run(work)


# ---------------------------------------------------------------- what a kept exception keeps


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
