"""Carriers that other distributions offer."""

import importlib
import sys

import pytest

import ctxcarry
from ctxcarry import CarrierError


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points."""
    modules = []

    def offer(module, source, **points):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[ctxcarry.carriers]", *lines, ""]))
        modules.append(module)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    before = {carrier.name for carrier in ctxcarry.carriers()}
    yield offer
    for module in modules:
        sys.modules.pop(module, None)
    for carrier in ctxcarry.carriers():
        if carrier.name not in before:
            ctxcarry.unregister(carrier.name)


OFFERED = """
from contextvars import ContextVar
from ctxcarry import ContextVarCarrier
carrier = ContextVarCarrier(ContextVar("one"), name="offered.one")
def make():
    return ContextVarCarrier(ContextVar("two"), name="offered.two")
class Own:
    name = "offered.three"
    def capture(self): ...
    def apply(self, state): ...
    def undo(self, token): ...
"""


def test_entry_points_are_registered_on_demand(offer):
    """A carrier, a function that makes one and a carrier's class can be offered."""
    offer("ctxcarry_offer_a", OFFERED, one="carrier", two="make", three="Own")
    assert "ctxcarry_offer_a" not in sys.modules
    expected = {"offered.one", "offered.two", "offered.three"}
    assert expected == set(ctxcarry.load_entry_points())
    assert expected <= {carrier.name for carrier in ctxcarry.carriers()}


def test_entry_points_twice(offer):
    """A second scan leaves what is registered and reports nothing new."""
    offer("ctxcarry_offer_b", OFFERED, one="carrier", two="make")
    ctxcarry.load_entry_points()
    before = ctxcarry.carriers()
    assert () == ctxcarry.load_entry_points()
    assert before == ctxcarry.carriers()


def test_entry_point_that_cannot_be_loaded_is_named(offer):
    """A broken entry point is a CarrierError that names it."""
    offer("ctxcarry_offer_c", "", broken="nothing_there")
    with pytest.raises(CarrierError, match="AttributeError") as caught:
        ctxcarry.load_entry_points()
    assert ("broken", "load") == (caught.value.carrier, caught.value.stage)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_entry_point_that_is_no_carrier_is_named(offer):
    """An entry point that offers something else is a CarrierError that names it."""
    offer("ctxcarry_offer_d", "def make(): return object()\n", strange="make")
    with pytest.raises(CarrierError) as caught:
        ctxcarry.load_entry_points()
    assert "strange" == caught.value.carrier
