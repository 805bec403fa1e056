"""Variables and inspectors of contextvars-extras."""

from contextvars import ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import MISSING, CarrierError, ContextVarsRegistryCarrier, Registry


@pytest.fixture
def extras():
    """Return a registry of contextvars-extras, and the function to get at its variables."""
    from contextvars_extras import ContextVarsRegistry

    class Current(ContextVarsRegistry):
        user: str
        step: int = 0

    return Current


def variable_of(registry, name):
    """Return the plain ContextVar behind an attribute of a registry."""
    return registry._registry_var_descriptors[name].context_var


def test_extras_names_itself(extras):
    """The carrier is named after the class, which may be given itself or as an instance."""
    assert "contextvars_extras:Current" == ContextVarsRegistryCarrier(extras()).name
    assert "contextvars_extras:Current" == ContextVarsRegistryCarrier(extras).name
    assert "mine" == ContextVarsRegistryCarrier(extras, name="mine").name


def test_extras_of_something_else():
    """What is no registry of that library is a TypeError."""
    from contextvars_extras import ContextVarsRegistry

    for wrong in (ContextVar("v"), ContextVarsRegistry, int, Registry()):
        with pytest.raises(TypeError, match="ContextVarsRegistry"):
            ContextVarsRegistryCarrier(wrong)


def test_extras_alone_is_carried_to_a_thread(extras, in_thread):
    """The variables of the registry, and no others, are carried under its name."""
    current, other = extras(), ContextVar("other", default="default")
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.user, current.step = "ada", 3
    other.set("near")
    snapshot = registry.capture()
    seen = in_thread(snapshot.run, lambda: (current.user, current.step, other.get()))
    assert ("ada", 3, "default") == seen


def test_extras_unset_comes_back_as_unset(extras):
    """Unset is unset for the plain ContextVar too, and not the library's sentinel."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    snapshot = registry.capture()
    current.user, current.step = "far", 9
    user, step = variable_of(extras, "user"), variable_of(extras, "step")

    def look():
        with pytest.raises(LookupError):
            user.get()
        assert (user in copy_context(), step in copy_context()) == (False, False)
        return current.step

    assert 0 == snapshot.run(look)
    assert ("far", 9) == (current.user, current.step)


def test_extras_round_trip_in_place(extras):
    """Applied and undone in place, the variables are as captured and then as before."""
    current = extras()
    carrier = ContextVarsRegistryCarrier(current)
    assert MISSING is carrier.capture()
    current.user, current.step = "ada", 1
    state = carrier.capture()
    current.user, current.step = "far", 2
    token = carrier.apply(state)
    assert ("ada", 1) == (current.user, current.step)
    carrier.undo(token)
    assert ("far", 2) == (current.user, current.step)


def test_extras_cannot_unset_in_place(extras):
    """In place, a variable without default cannot be unset; nothing is changed then."""
    current = extras()
    carrier = ContextVarsRegistryCarrier(current)
    current.user, current.step = "far", 2
    with pytest.raises(CarrierError, match="user"):
        carrier.apply(MISSING)
    assert ("far", 2) == (current.user, current.step)


def test_extras_attribute_added_before_capture(extras):
    """An attribute that the registry gained after its carrier was made is carried."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.tenant = "near"
    snapshot = registry.capture()
    current.tenant = "far"
    assert "near" == snapshot.run(lambda: current.tenant)


def test_extras_attribute_added_after_capture(extras):
    """An attribute that the registry gained after the capture was not set then, and is unset."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.user = "near"
    snapshot = registry.capture()
    current.tenant = "far"
    tenant = variable_of(extras, "tenant")

    def look():
        with pytest.raises(LookupError):
            tenant.get()
        return current.user

    assert "near" == snapshot.run(look)
    assert "far" == current.tenant


def test_extras_within_contextvars(extras, registry):
    """Beside `contextvars` the registry can be cleared or left out by its name."""
    current = extras()
    registry.register(ContextVarsRegistryCarrier(current))
    current.step = 1
    with ctxcarry.policy(clear="contextvars_extras:Current"):
        cleared = registry.capture()
    with ctxcarry.suppress("contextvars_extras:Current"):
        left = registry.capture()
    carried = registry.capture()
    current.step = 2
    assert [0, 2, 1] == [s.run(lambda: current.step) for s in (cleared, left, carried)]


def test_bound_arguments_arrive_once(extras):
    """Arguments of binding and of the call arrive as given, unlike in that library (trap 13)."""
    from functools import partial

    current = extras()
    ctxcarry.register(ContextVarsRegistryCarrier(current))
    try:
        current.step = 7

        def show(*args, **kwargs):
            return current.step, args, kwargs

        both, one = ctxcarry.bind(show), ctxcarry.bind(partial(show, 1))
        current.step = 8
        assert (7, (1, 2), {"k": 3}) == both(1, 2, k=3)
        assert (7, (1,), {}) == one()
        assert (7, (), {}) == both()
    finally:
        ctxcarry.unregister("contextvars_extras:Current")
