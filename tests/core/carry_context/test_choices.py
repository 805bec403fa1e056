"""Only, exclude and policies, and functions decorated twice."""

import functools

import pytest
from carry_context_subjects import TIMEOUT, look, variable

from ctxcarry import UnknownCarrierError, carry_context, policy, suppress


def test_only_and_exclude(plain, default_local):
    """`only` and `exclude` take names, and what is left out stays as the worker has it."""

    def both(*_):
        return variable.get(), getattr(default_local, "value", None)

    only = carry_context(only="contextvars")(both)
    several = carry_context(only=["contextvars", "test.local"])(both)
    exclude = carry_context(exclude="contextvars")(both)
    variable.set("near")
    default_local.value = "near"
    expected = [(only, ("near", None)), (several, ("near", "near")), (exclude, ("default", "near"))]
    for decorated, seen in expected:
        assert seen == plain.submit(decorated).result(TIMEOUT)
        assert [seen] == list(plain.map(decorated, [0]))
    bound = only.bind()
    variable.set("later")
    default_local.value = "later"
    assert ("near", "later") == bound()


def test_both_only_and_exclude():
    """Both at once are a ValueError."""
    with pytest.raises(ValueError, match="only= or exclude="):
        carry_context(only="contextvars", exclude="contextvars")


def test_unknown_names_fail_at_the_decoration():
    """An unknown name is an error where it is written."""
    for arguments in ({"only": "contextvar"}, {"exclude": ["contextvar"]}):
        with pytest.raises(UnknownCarrierError, match="Did you mean 'contextvars'"):
            carry_context(**arguments)(look)


def test_empty_parentheses(plain):
    """`@carry_context()` is `@carry_context`."""
    variable.set("near")
    assert "near" == plain.submit(carry_context()(look)).result(TIMEOUT)


def test_policies_in_force_at_the_hand_over(plain, default_local):
    """`suppress` and `policy` around a hand-over hold for decorated functions."""

    @carry_context
    def both():
        return variable.get(), getattr(default_local, "value", None)

    variable.set("near")
    default_local.value = "near"
    with suppress("contextvars"):
        assert ("default", "near") == plain.submit(both).result(TIMEOUT)
    with suppress():
        assert ("default", None) == plain.submit(both).result(TIMEOUT)
        bound = both.bind()
    with policy(propagate="test.local", unchanged="*"):
        assert ("default", "near") == plain.submit(both).result(TIMEOUT)
    variable.set("later")
    assert ("later", "near") == bound()


def test_decorated_twice(plain):
    """A second decoration adds no second layer."""
    once = carry_context(look)
    assert once is carry_context(once)
    variable.set("near")
    assert "near" == plain.submit(carry_context(carry_context(look))).result(TIMEOUT)


def test_decorated_twice_with_names(plain, default_local):
    """A second decoration may add names; the first one stays as it is, and none takes them away."""

    def both():
        return variable.get(), getattr(default_local, "value", None)

    first = carry_context(both)
    second = carry_context(exclude="contextvars")(first)
    variable.set("near")
    default_local.value = "near"
    assert ("near", "near") == plain.submit(first).result(TIMEOUT)
    assert ("default", "near") == plain.submit(second).result(TIMEOUT)
    assert ("default", "near") == plain.submit(carry_context(second)).result(TIMEOUT)


def test_under_another_decorator(plain):
    """A decorator outside ours hides it, one inside ours does not."""

    def other(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return "other", fn(*args)

        return wrapper

    variable.set("near")
    assert ("other", "near") == plain.submit(carry_context(other(look))).result(TIMEOUT)
    assert ("other", "default") == plain.submit(other(carry_context(look))).result(TIMEOUT)
