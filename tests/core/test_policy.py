"""Policies: propagate, clear, unchanged, the remaining ones, and suppress."""

import asyncio
import threading
from contextvars import ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import (
    ContextVarCarrier,
    LeakError,
    Registry,
    ThreadLocalCarrier,
    UnknownCarrierError,
    ValueCarrier,
    policy,
    suppress,
)
from ctxcarry._policy import ambient_policy

TIMEOUT = 30

free = ContextVar("free")
free_default = ContextVar("free_default", default="default")
named = ContextVar("named")
named_default = ContextVar("named_default", default="default")


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    now = "unset"


class Scene:
    """Contexts of every kind under a registry of their own."""

    def __init__(self, registry):
        self.registry = registry
        self.a, self.b, self.cell = threading.local(), threading.local(), Cell()
        registry.register(ThreadLocalCarrier(self.a, name="a"))
        registry.register(ThreadLocalCarrier(self.b, name="b"))
        registry.register(
            ValueCarrier(
                "cell",
                lambda: self.cell.now,
                lambda value: setattr(self.cell, "now", value),
                default="unset",
            )
        )
        registry.register(ContextVarCarrier(named))
        registry.register(ContextVarCarrier(named_default))

    def set_all(self, value):
        self.a.value = self.b.value = self.cell.now = value
        for variable in (free, free_default, named, named_default):
            variable.set(value)

    def seen(self):
        found = {
            "a": getattr(self.a, "value", None),
            "b": getattr(self.b, "value", None),
            "cell": {"unset": None}.get(self.cell.now, self.cell.now),
        }
        for variable in (free, named):
            found[variable.name] = variable.get(None)
        for variable in (free_default, named_default):
            found[variable.name] = {"default": None}.get(variable.get(), variable.get())
            # Cleared and unset variables are unset, and do not merely show their default.
        found["in context"] = sorted(
            v.name for v in (free, free_default, named, named_default) if v in copy_context()
        )
        return found

    def run(self, which):
        """Capture ``near`` under the policy, and look under the snapshot where ``far`` is set."""
        self.set_all("near")
        with which:
            snapshot = self.registry.capture()
        self.set_all("far")
        seen = snapshot.run(self.seen)
        assert expected("far") == self.seen()
        return seen


FREE = ("free", "free_default")
NAMED = ("named", "named_default")
EVERYTHING = ("a", "b", "cell", *FREE, *NAMED)


def expected(default, **others):
    """Return what is seen when all contexts show `default`, but for `others`."""
    found = dict.fromkeys(EVERYTHING, default) | others
    found["in context"] = sorted(n for n in (*FREE, *NAMED) if found[n] is not None)
    return found


@pytest.fixture
def scene(registry):
    """Return contexts of every kind under a registry of their own."""
    return Scene(registry)


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


@pytest.mark.parametrize(
    ("one", "other"), [("propagate", "clear"), ("clear", "unchanged"), ("propagate", "unchanged")]
)
@pytest.mark.parametrize("name", ["a", "*"])
def test_overlap_is_an_error(one, other, name):
    """A name in two arguments is a ValueError that says which and where."""
    with pytest.raises(ValueError, match=f"both {one} and {other}"):
        policy(**{one: ["b", name], other: name})


def test_same_name_twice_in_one_argument():
    """To say the same thing twice is no contradiction."""
    assert policy(clear="a") == policy(clear=["a", "a"])


@pytest.mark.parametrize("wrong", [3, [3], [None], [ContextVar("v")]])
def test_names_are_strings(wrong):
    """Something other than names is a TypeError."""
    with pytest.raises(TypeError):
        policy(clear=wrong)


def test_policies_compare_and_show():
    """Policies that say the same are equal, and their repr says it."""
    assert policy(clear=["a", "b"]) == policy(clear=["b", "a"])
    assert hash(policy(clear="a")) == hash(policy(clear="a"))
    assert policy(clear="a") != policy(unchanged="a")
    assert policy(clear="a") != "clear"
    assert "policy(clear=['a'])" == repr(policy(clear="a"))
    assert suppress("a") == policy(unchanged="a")
    assert suppress() == policy(unchanged="*")


NESTED = {
    "inner wins": ([policy(clear="a"), policy(unchanged="a")], expected("near", a="far")),
    "inner propagates again": ([suppress("a"), policy(propagate="a")], expected("near")),
    "both hold": (
        [policy(clear="a"), policy(unchanged="b")],
        expected("near", a=None, b="far"),
    ),
    "name over outer star": ([suppress(), policy(propagate="a")], expected("far", a="near")),
    "inner star covers all": ([policy(clear="a"), suppress()], expected("far")),
    "inner star but one": (
        [policy(clear="a"), policy(propagate="b", unchanged="*")],
        expected("far", b="near"),
    ),
    "three deep": (
        [suppress(), policy(clear="a"), policy(propagate="b")],
        expected("far", a=None, b="near"),
    ),
    "suppress twice": ([suppress("a"), suppress("b")], expected("near", a="far", b="far")),
}


@pytest.mark.parametrize("case", NESTED)
def test_nesting(case, scene):
    """The innermost policy that names a context decides (feature 11)."""
    policies, seen = NESTED[case]

    class All:
        def __enter__(self):
            for one in policies:
                one.__enter__()

        def __exit__(self, *_):
            for one in reversed(policies):
                one.__exit__(None, None, None)

    assert seen == scene.run(All())


def test_leaving_brings_back_the_outer_policy(scene):
    """After a block the policy outside it is in force again."""
    scene.set_all("near")
    with suppress("a"):
        with suppress("b"):
            scene.registry.capture()
        inside = scene.registry.capture()
    outside = scene.registry.capture()
    scene.set_all("far")
    assert expected("near", a="far") == inside.run(scene.seen)
    assert expected("near") == outside.run(scene.seen)


def test_policy_is_left_by_an_exception(scene):
    """An exception leaves the block and the policy."""
    with pytest.raises(ValueError, match="mine"), suppress():
        raise ValueError("mine")
    assert expected("near") == scene.run(policy())


def test_policy_can_be_entered_again(scene):
    """One policy may be entered again, and inside itself."""
    nothing = suppress("a")
    for _ in range(2):
        with nothing as entered, nothing, nothing:
            assert entered is nothing
            scene.set_all("near")
            snapshot = scene.registry.capture()
        scene.set_all("far")
        assert expected("near", a="far") == snapshot.run(scene.seen)
    assert expected("near") == scene.run(policy())


def test_policy_of_one_thread_is_not_anothers(scene, in_thread):
    """A policy holds in the thread that entered it."""
    with suppress():
        assert in_thread(ambient_policy.get) is None
        assert in_thread(scene.run, policy()) == expected("near")


def test_unknown_name(scene):
    """A name that nobody has is an error at the hand-over, with a suggestion."""
    with (
        pytest.raises(UnknownCarrierError, match="Did you mean 'named'"),
        policy(clear="namd"),
    ):
        scene.registry.capture()
    with pytest.raises(UnknownCarrierError, match="named"):
        ctxcarry.executor(policy=policy(clear="namd"), registry=scene.registry)


def test_unknown_name_in_the_default_registry():
    """The functions of the package check names too."""
    with pytest.raises(UnknownCarrierError), suppress("test.nothing"):
        ctxcarry.capture()
    with pytest.raises(UnknownCarrierError):
        ctxcarry.carry_context(only="test.nothing")(print)


def test_names_of_frameworks_that_are_not_imported():
    """A framework's context can be named before the framework is imported."""
    with suppress("torch.grad_mode", "triton.allocator", "spmd_types.state"):
        ctxcarry.capture()


def test_left_in_another_thread(in_thread):
    """A policy entered in one thread and left in another is a LeakError, and holds on."""
    one = suppress("a")
    with one:

        def elsewhere():
            with pytest.raises(LeakError, match="not the innermost"):
                one.__exit__(None, None, None)

        in_thread(elsewhere)
        assert ambient_policy.get().policy == one
    assert ambient_policy.get() is None


def test_left_out_of_order():
    """A policy that is not the innermost one cannot be left."""
    outer, inner = suppress("a"), policy(clear="a")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(LeakError, match="out of order"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert ambient_policy.get() is None


def test_left_without_being_entered():
    """A policy that was never entered cannot be left."""
    with pytest.raises(LeakError):
        suppress().__exit__(None, None, None)


def test_left_in_the_wrong_place_does_not_mask(in_thread):
    """The user's exception stays what the caller sees when a policy is left in a wrong place."""

    def body():
        with suppress():
            yield

    generator = body()
    next(generator)
    try:

        def elsewhere():
            with pytest.raises(ValueError, match="mine") as caught:
                generator.throw(ValueError("mine"))
            return getattr(caught.value, "__notes__", [])

        assert "innermost" in "".join(in_thread(elsewhere))
    finally:
        ambient_policy.set(None)


def test_left_by_a_generator_in_a_copied_context(scene):
    """A generator may leave the block in a copy of the Context that it entered it in (trap 3)."""

    def body():
        with suppress("a"):
            yield scene.registry.capture()
        yield scene.registry.capture()

    def drive():
        generator = body()
        inside = next(generator)
        outside = copy_context().run(next, generator)
        assert ambient_policy.get() is not None  # this Context did not see it left
        generator.close()
        return inside, outside

    scene.set_all("near")
    inside, outside = copy_context().run(drive)
    scene.set_all("far")
    assert expected("near", a="far") == inside.run(scene.seen)
    assert expected("near") == outside.run(scene.seen)


def test_tasks_have_policies_of_their_own(scene):
    """Policies of interleaved asyncio tasks do not mix."""

    async def work(which):
        with which:
            await asyncio.sleep(0)
            taken = scene.registry.capture()
            await asyncio.sleep(0)
        return taken

    async def main():
        scene.set_all("near")
        taken = await asyncio.gather(work(suppress("a")), work(suppress("b")), work(policy()))
        scene.set_all("far")
        return [snapshot.run(scene.seen) for snapshot in taken]

    seen = [expected("near", a="far"), expected("near", b="far"), expected("near")]
    assert seen == asyncio.run(main())


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


@pytest.mark.parametrize("wrong", ["clear", {"clear": "a"}, object()])
def test_executor_with_something_else(wrong):
    """What is no policy is a TypeError that says how to make one."""
    with pytest.raises(TypeError, match=r"ctxcarry\.policy"):
        ctxcarry.executor(policy=wrong)


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
