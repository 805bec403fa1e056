"""Only, exclude and policies on a class."""

import asyncio

import pytest
from carry_class_subjects import bare, variable

import ctxcarry
from ctxcarry import ContextVarCarrier, UnknownCarrierError, carry_context, policy, suppress


def test_only_and_exclude(default_local, in_thread):
    """`only` and `exclude` choose what the base holds."""

    class Worker:
        def __init__(self):
            variable.set("base")
            default_local.value = "base"

        def seen(self):
            return variable.get(), getattr(default_local, "value", None)

        async def later(self):
            return self.seen()

    only = carry_context(only="contextvars")(type("Only", (Worker,), {}))
    exclude = carry_context(exclude="contextvars")(type("Exclude", (Worker,), {}))
    for cls, expected in ((only, ("base", None)), (exclude, ("default", "base"))):
        worker = in_thread(cls)
        assert expected == worker.seen()
        assert expected == asyncio.run(worker.later())


def test_only_one_variable_by_name(in_thread):
    """A ContextVar that has a carrier of its own can be all that the base holds, or left out."""
    ctxcarry.register(ContextVarCarrier(variable, name="test.variable"))
    try:

        class Worker:
            def __init__(self):
                variable.set("base")
                bare.set("base")

            def seen(self):
                return variable.get(), bare.get(None)

        only = carry_context(only="test.variable")(type("Only", (Worker,), {}))
        exclude = carry_context(exclude="test.variable")(type("Exclude", (Worker,), {}))
        assert ("base", None) == in_thread(only).seen()
        assert ("default", "base") == in_thread(exclude).seen()
    finally:
        ctxcarry.unregister("test.variable")


def test_unknown_names_fail_at_the_decoration():
    """An unknown name is an error where it is written."""
    with pytest.raises(UnknownCarrierError):

        @carry_context(only="contextvar")
        class Worker:
            pass


def test_policy_around_the_construction(worker_class, in_thread):
    """A policy in force when an instance is made decides what its base holds."""

    def make():
        with suppress("test.local"):
            return worker_class()

    worker = in_thread(make)
    assert ("base", "base", None) == worker.seen()


def test_policy_of_the_construction_is_not_in_force_in_methods(default_local, in_thread):
    """Work that a method hands over is not under the policy that its instance was made under."""

    @carry_context
    class Worker:
        def hand_over(self):
            return ctxcarry.capture()

    def make():
        with policy(unchanged="test.local"):
            return Worker()

    default_local.value = "near"
    snapshot = in_thread(make).hand_over()
    default_local.value = "far"
    assert "near" == snapshot.run(lambda: default_local.value)
