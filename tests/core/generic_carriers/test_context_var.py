"""MISSING, and the carrier of a ContextVar."""

import copy
import pickle
import threading
from contextvars import Context, ContextVar, copy_context

import pytest

from ctxcarry import MISSING, UNCHANGED, CarrierError, ContextVarCarrier, LeakError, Registry


@pytest.mark.parametrize("marker", [MISSING, UNCHANGED], ids=repr)
def test_markers_stay_themselves(marker):
    """Copying and pickling a marker gives the marker itself."""
    assert marker is copy.copy(marker)
    assert marker is copy.deepcopy({"a": marker})["a"]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert marker is pickle.loads(pickle.dumps(marker, protocol))  # noqa: S301


def test_missing_is_not_none():
    """A state of None is set, and is not what "not set" looks like."""
    assert MISSING is not None
    assert MISSING != None  # noqa: E711 - equality is the question
    assert "MISSING" == repr(MISSING)


def test_contextvar_carrier_takes_the_name_of_its_variable():
    """The carrier is called as the variable unless another name is given."""
    variable = ContextVar("variable")
    assert "variable" == ContextVarCarrier(variable).name
    assert "app.v" == ContextVarCarrier(variable, name="app.v").name
    assert variable is ContextVarCarrier(variable).variable


@pytest.mark.parametrize("wrong", [threading.local(), "module:variable", None, ContextVar])
def test_contextvar_carrier_of_something_else(wrong):
    """What is no ContextVar is a TypeError that names the carriers that may fit."""
    with pytest.raises(TypeError, match="ThreadLocalCarrier"):
        ContextVarCarrier(wrong)


@pytest.mark.parametrize("value", [None, 0, "near", {}, MISSING])
def test_contextvar_carrier_round_trip(value):
    """The captured value is applied, and undo brings back what was there."""
    variable = ContextVar("variable", default="default")
    carrier = ContextVarCarrier(variable)
    if value is not MISSING:
        variable.set(value)
    state = carrier.capture()
    assert value is state
    variable.set("far")
    token = carrier.apply(state)
    assert ("default" if value is MISSING else value) == variable.get()
    carrier.undo(token)
    assert "far" == variable.get()


def test_contextvar_carrier_default_is_not_captured():
    """A variable that shows only its default is not set."""
    assert MISSING is ContextVarCarrier(ContextVar("variable", default=3)).capture()


def test_contextvar_carrier_undo_unsets():
    """Undo of a value applied over nothing leaves the variable unset."""
    variable = ContextVar("variable")
    carrier = ContextVarCarrier(variable)
    carrier.undo(carrier.apply("value"))
    with pytest.raises(LookupError):
        variable.get()
    assert variable not in copy_context()


def test_contextvar_carrier_cannot_unset_without_default():
    """In place, a variable without default cannot be unset: an error that says what can."""
    variable = ContextVar("variable")
    variable.set("far")
    with pytest.raises(CarrierError, match=r"snapshot\.run") as caught:
        ContextVarCarrier(variable, name="app.v").apply(MISSING)
    assert ("app.v", "apply") == (caught.value.carrier, caught.value.stage)
    assert "far" == variable.get()


def test_contextvar_carrier_undo_in_another_context():
    """Undo in a Context that did not see the apply is a LeakError."""
    carrier = ContextVarCarrier(ContextVar("variable"))
    token = carrier.apply("value")
    with pytest.raises(LeakError, match="variable"):
        Context().run(carrier.undo, token)
    carrier.undo(token)


def test_contextvar_carrier_alone_carries_only_its_variable():
    """Without `contextvars` one variable is carried and the others are left."""
    chosen, other = ContextVar("chosen"), ContextVar("other")
    registry = Registry()
    registry.register(ContextVarCarrier(chosen))
    chosen.set("near")
    other.set("near")
    snapshot = registry.capture()
    chosen.set("far")
    other.set("far")
    assert ("near", "far") == snapshot.run(lambda: (chosen.get(), other.get()))


def test_contextvar_carrier_alone_unsets():
    """Not set is a state: the variable is unset where the snapshot runs."""
    variable = ContextVar("variable")
    registry = Registry()
    registry.register(ContextVarCarrier(variable))
    snapshot = registry.capture()
    variable.set("far")
    with pytest.raises(LookupError):
        snapshot.run(variable.get)
    assert "far" == variable.get()
