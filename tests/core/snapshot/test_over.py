"""One snapshot over another, and what a snapshot tells of itself."""

import re
import threading
from contextvars import Context

from snapshot_subjects import Counting, defaulted, plain

import ctxcarry
from ctxcarry import ContextVarCarrier, Registry, Snapshot, ThreadLocalCarrier, ValueCarrier


def test_over_fills_what_is_missing(registry, local):
    """`over` takes from the base what the snapshot itself does not set."""
    plain.set("base")
    defaulted.set("base")
    local.value = "base"
    base = registry.capture()

    def near():
        plain.set("near")
        return registry.capture()

    del local.value
    snapshot = Context().run(near)
    assert ("near", "base", "base") == snapshot.over(base).run(
        lambda: (plain.get(), defaulted.get(), local.value)
    )
    assert ("near", "default", {}) == snapshot.run(
        lambda: (plain.get(), defaulted.get(), dict(vars(local)))
    )


def test_over_none_counts_as_set(registry, local):
    """None in the snapshot is a value and is not replaced from the base."""
    plain.set("base")
    local.value = "base"
    base = registry.capture()
    plain.set(None)
    local.value = None
    snapshot = registry.capture()
    assert (None, None) == snapshot.over(base).run(lambda: (plain.get(), local.value))


def test_over_respects_a_default():
    """A ValueCarrier's default counts as not set."""
    values = {"now": "unset"}
    registry = Registry()
    registry.register(
        ValueCarrier("v", lambda: values["now"], lambda v: values.update(now=v), default="unset")
    )
    snapshot = registry.capture()
    values["now"] = "base"
    base = registry.capture()
    values["now"] = "far"
    assert "base" == snapshot.over(base).run(lambda: values["now"])
    assert "far" == values["now"]


def test_over_does_not_undo_a_clear(registry, local):
    """What a policy cleared in the snapshot stays cleared over any base."""
    local.value = "base"
    plain.set("base")
    base = registry.capture()
    with ctxcarry.policy(clear=["local", "contextvars"]):
        snapshot = registry.capture()
    look = snapshot.over(base)
    assert ({}, None) == look.run(lambda: (dict(vars(local)), plain.get(None)))


def test_over_with_a_variable_of_its_own_name():
    """A ContextVar carried by name alone is taken from the base like any other context."""
    registry = Registry()
    registry.register(ContextVarCarrier(plain))
    snapshot = registry.capture()
    plain.set("base")
    base = registry.capture()
    plain.set("far")
    assert "base" == snapshot.over(base).run(plain.get)


def test_explain_has_a_line_for_each_carrier(registry, local):
    """Captured, missing, skipped and cleared contexts are told apart, in order."""
    plain.set("near")
    local.value = "near"
    other = threading.local()
    registry.register(ThreadLocalCarrier(other, name="other"))
    registry.register(ThreadLocalCarrier(threading.local(), name="left"))
    registry.register(ThreadLocalCarrier(threading.local(), name="cleared"))
    registry.register(ContextVarCarrier(plain, name="app.plain"))
    with ctxcarry.policy(unchanged="left", clear="cleared"):
        text = registry.capture().explain()
    first, *lines = text.splitlines()
    assert "captured" in first
    assert ["contextvars", "local", "other", "left", "cleared", "app.plain"] == [
        line.split(":")[0].strip() for line in lines
    ]
    assert "captured" in lines[0]
    assert "'value': 'near'" in lines[1]
    assert "not set" in lines[2]
    assert "skipped" in lines[3]
    assert "cleared" in lines[4]
    assert "'near'" in lines[5]


def test_explain_counts_the_users_variables_only(registry):
    """With no variable set, nothing of ours is counted as one, policy or not."""
    assert "contextvars: nothing set" in registry.capture().explain()
    with ctxcarry.policy(propagate="contextvars"):
        inside = registry.capture().explain()
    assert "contextvars: nothing set" in inside
    assert "contextvars: nothing set" in registry.capture().explain()
    assert "<Snapshot of nothing>" == repr(registry.capture())


def test_explain_says_where(registry, monkeypatch):
    """When origins are recorded, the place of the capture is told, and it is the user's."""
    from ctxcarry._capture import origins

    assert str(__file__) not in registry.capture().explain()
    monkeypatch.setattr(origins, "recorded", True)
    text = registry.capture().explain()
    assert re.search(rf"{re.escape(__file__)}:\d+ in test_explain_says_where", text)


def test_explain_uses_the_carriers_own_words():
    """A carrier's `describe` is used, and one without it is shown by its repr."""
    registry = Registry()
    registry.register(Counting()).value = "near"
    assert "counting: captured: 'near'" in registry.capture().explain()
    described = type("Described", (Counting,), {"describe": lambda self, state: f"<{state}>"})
    registry.unregister("counting")
    registry.register(described()).value = "near"
    assert "counting: captured: <near>" in registry.capture().explain()


def test_repr_names_what_is_set(registry, local):
    """The repr lists the contexts that are set."""
    assert "<Snapshot of nothing>" == repr(registry.capture())
    plain.set(1)
    local.value = 1
    assert "<Snapshot of contextvars, local>" == repr(registry.capture())
    assert isinstance(registry.capture(), Snapshot)
