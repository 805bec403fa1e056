"""Policies for stepped bodies, and nothing to carry."""

from stepping_subjects import FAR, variable

import ctxcarry
from ctxcarry import carry_context, policy


def test_cleared_contexts_are_unset_at_each_step(seen, set_all, default_local):
    """A context that a policy cleared at the call is unset at each step."""

    @carry_context
    def body():
        for _ in range(2):
            yield variable.get(), hasattr(default_local, "value")

    set_all("near")
    with policy(clear=["contextvars", "test.local"]):
        generator = body()
    set_all("far")
    assert [("default", False)] * 2 == list(generator)
    assert FAR == seen()


def test_cleared_context_that_the_body_sets(set_all, default_local):
    """What the body sets in a cleared context is its own too."""

    @carry_context
    def body():
        default_local.value = "mine"
        yield
        yield default_local.value

    with policy(clear="test.local"):
        generator = body()
    set_all("far")
    next(generator)
    assert "far" == default_local.value
    assert "mine" == next(generator)
    assert "far" == default_local.value


def test_nothing_to_carry_returns_plain_objects():
    """With everything suppressed a generator function is called as it is."""
    with ctxcarry.suppress():
        generator = carry_context(lambda: (yield variable.get()))()
    variable.set("far")
    assert ["far"] == list(generator)
