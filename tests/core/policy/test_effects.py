"""What the work sees under each policy."""

import pytest
from policy_subjects import expected, free, named, named_default

import ctxcarry
from ctxcarry import Registry, policy, suppress

TIMEOUT = 30

CASES = {
    "nothing": (policy(), expected("near")),
    "propagate": (policy(propagate="a"), expected("near")),
    "clear a local": (policy(clear="a"), expected("near", a=None)),
    "clear two": (policy(clear=["a", "cell"]), expected("near", a=None, cell=None)),
    "clear a value": (policy(clear="cell"), expected("near", cell=None)),
    "leave a local": (policy(unchanged="a"), expected("near", a="far")),
    "leave a value": (policy(unchanged=("cell",)), expected("near", cell="far")),
    "clear and leave": (policy(clear="a", unchanged="b"), expected("near", a=None, b="far")),
    "clear a variable": (policy(clear="named"), expected("near", named=None)),
    "clear one with default": (
        policy(clear="named_default"),
        expected("near", named_default=None),
    ),
    "leave a variable": (policy(unchanged="named"), expected("near", named="far")),
    "clear contextvars": (
        policy(clear="contextvars"),
        expected("near", free=None, free_default=None),
    ),
    "leave contextvars": (
        policy(unchanged="contextvars"),
        expected("near", free="far", free_default="far"),
    ),
    "clear all": (policy(clear="*"), expected(None)),
    "leave all": (policy(unchanged="*"), expected("far")),
    "propagate all": (policy(propagate="*"), expected("near")),
    "clear but one": (policy(propagate="b", clear="*"), expected(None, b="near")),
    "leave but one variable": (
        policy(propagate="named", unchanged="*"),
        expected("far", named="near"),
    ),
    "leave but one local": (policy(propagate="a", unchanged="*"), expected("far", a="near")),
    "clear one, leave the rest": (policy(clear="a", unchanged="*"), expected("far", a=None)),
    "clear one variable, leave the rest": (
        policy(clear="named", unchanged="*"),
        expected("far", named=None),
    ),
    "clear but one variable": (
        policy(propagate="named", clear="*"),
        expected(None, named="near"),
    ),
    "clear all, leave a variable": (
        policy(unchanged="named", clear="*"),
        expected(None, named="far"),
    ),
    "suppress one": (suppress("a"), expected("near", a="far")),
    "suppress two": (suppress("a", "named"), expected("near", a="far", named="far")),
    "suppress all": (suppress(), expected("far")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_work_sees(case, scene):
    """Each context is as captured, unset, or as it is where the work runs (feature 1)."""
    which, seen = CASES[case]
    assert seen == scene.run(which)


@pytest.mark.parametrize("case", [c for c in CASES if "clear" in c])
def test_what_the_work_sees_over_nothing(case, scene, in_thread):
    """In a fresh thread what is cleared or left is not set either, and stays so."""
    which, seen = CASES[case]
    scene.set_all("near")
    with which:
        snapshot = scene.registry.capture()
    there, after = in_thread(lambda: (snapshot.run(scene.seen), scene.seen()))
    as_far = {n: None if v == "far" else v for n, v in seen.items() if n != "in context"}
    assert expected(None, **as_far) == there
    assert expected(None) == after


def test_clear_really_unsets_a_variable(scene):
    """A cleared ContextVar without default is a LookupError, with default it shows that."""
    scene.set_all("near")
    with policy(clear=["named", "named_default"]):
        snapshot = scene.registry.capture()

    def look():
        with pytest.raises(LookupError):
            named.get()
        return named_default.get(), free.get()

    assert ("default", "near") == snapshot.run(look)


def test_clear_really_deletes_a_field(scene):
    """A cleared field of a threading.local is an AttributeError, and comes back."""
    scene.set_all("near")
    with policy(clear="a"):
        snapshot = scene.registry.capture()

    def look():
        with pytest.raises(AttributeError):
            scene.a.value  # noqa: B018 - the access is the test

    snapshot.run(look)
    assert "near" == scene.a.value


@pytest.mark.parametrize("case", [c for c in CASES if "clear" in c and "variable" not in c])
def test_what_a_block_sees(case, scene):
    """`active()` follows the same policies; a variable without default is out of its reach."""
    which, seen = CASES[case]
    scene.set_all("near")
    with which:
        snapshot = scene.registry.capture()
    scene.set_all("far")
    try:
        with snapshot.active():
            there = scene.seen()
    except ctxcarry.CarrierError:
        assert seen["named"] is None
    else:
        for name in ("a", "b", "cell", "free_default", "named_default"):
            assert (name, seen[name]) == (name, there[name])
    assert expected("far") == scene.seen()


def test_executor_with_a_policy(scene):
    """A pool's policy holds for each task, within the policies in force at the submit."""
    with ctxcarry.executor(1, registry=scene.registry, policy=policy(clear="a")) as pool:
        scene.set_all("near")
        assert expected("near", a=None) == pool.submit(scene.seen).result(TIMEOUT)
        assert [expected("near", a=None)] == list(pool.map(lambda _: scene.seen(), [0]))
        with policy(clear="b"):
            assert expected("near", a=None, b=None) == pool.submit(scene.seen).result(TIMEOUT)
        with policy(propagate="a"):  # the pool's is the inner one
            assert expected("near", a=None) == pool.submit(scene.seen).result(TIMEOUT)


def test_capture_only_within_a_policy(scene):
    """``only`` and ``exclude`` refine the policy in force."""
    scene.set_all("near")
    with policy(clear="b"):
        only = scene.registry.capture(only="a")
        without = scene.registry.capture(exclude="a")
    scene.set_all("far")
    assert expected("far", a="near") == only.run(scene.seen)
    assert expected("near", a="far", b=None) == without.run(scene.seen)


def test_suppress_everything_costs_nothing(scene):
    """With everything suppressed there is nothing to carry."""
    with suppress():
        assert len is scene.registry.capture().wrap(len)


def test_clear_a_carrier_without_a_default():
    """A carrier from scratch is asked to apply MISSING."""

    class Slot:
        name = "slot"
        value = "far"

        def capture(self):
            return self.value

        def apply(self, state):
            before, self.value = self.value, state
            return before

        def undo(self, token):
            self.value = token

    registry = Registry()
    slot = registry.register(Slot())
    with policy(clear="slot"):
        snapshot = registry.capture()
    assert ctxcarry.MISSING is snapshot.run(lambda: slot.value)
    assert "far" == slot.value


def test_clear_does_not_ask_for_the_value():
    """A context that is cleared is not captured: its state would be kept for nothing."""

    class Private:
        name = "private"

        def capture(self):
            pytest.fail("captured")

        def apply(self, state):
            return None

        def undo(self, token):
            pass

    registry = Registry()
    registry.register(Private())
    for which in (policy(clear="private"), suppress("private")):
        with which:
            registry.capture()
