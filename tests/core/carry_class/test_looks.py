"""Carried classes look, pickle and copy as before."""

import asyncio
import copy
import inspect
import pickle

import pytest
from carry_class_subjects import variable

from ctxcarry import carry_context


def test_class_is_the_same_class(worker_class):
    """The decorated class is the class itself."""

    class Plain:
        pass

    assert Plain is carry_context(Plain)
    assert "Worker" == worker_class.__name__
    assert "Do some work." == worker_class.__doc__


def test_method_looks(worker_class, made):
    """Methods keep name, documentation, signature and kind."""
    worker = made(worker_class)
    assert "seen" == worker.seen.__name__ == worker_class.seen.__name__
    assert "Say what is set." == worker.seen.__doc__
    assert ["args", "kwargs"] == list(inspect.signature(worker.seen).parameters)
    assert ["value"] == list(inspect.signature(worker_class).parameters)
    assert "Set everything to `value`." == worker_class.__init__.__doc__
    assert inspect.iscoroutinefunction(worker.coroutine)
    assert inspect.isgeneratorfunction(worker.generator)
    assert inspect.isasyncgenfunction(worker.stream)
    assert inspect.ismethod(worker.seen)
    assert inspect.ismethod(worker.coroutine)
    assert inspect.isfunction(worker_class.seen)
    assert worker.seen == worker.seen


@pytest.mark.parametrize("has", ["nothing", "init", "new", "parent"])
def test_class_signature(has):
    """The signature of the class is that of the undecorated one."""

    def make():
        class Parent:
            def __init__(self, one, *, two=2):
                pass

        class Nothing:
            pass

        class Init:
            def __init__(self, one: int = 1):
                pass

        class New:
            def __new__(cls, one):
                return super().__new__(cls)

        class Child(Parent):
            pass

        return {"nothing": Nothing, "init": Init, "new": New, "parent": Child}[has]

    assert inspect.signature(make()) == inspect.signature(carry_context(make()))


@carry_context
class AtModuleLevel:
    """An instance of this can be pickled."""

    def __init__(self, value):
        self.value = value
        variable.set(value)

    def seen(self):
        return self.value, variable.get()

    async def coroutine(self):
        return self.value, variable.get()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_instances_pickle(protocol, in_thread):
    """An instance pickles as before; nothing of the base travels with it."""
    instance = in_thread(AtModuleLevel, 3)
    data = pickle.dumps(instance, protocol)
    assert b"ctxcarry" not in data
    again = pickle.loads(data)  # noqa: S301
    assert {"value": 3} == vars(again)
    assert (3, "default") == again.seen()
    assert (3, 3) == instance.seen()


@pytest.mark.parametrize("name", ["seen", "coroutine"])
def test_methods_pickle(name, in_thread):
    """Bound methods and methods of the class pickle."""
    method = pickle.loads(pickle.dumps(getattr(in_thread(AtModuleLevel, 3), name)))  # noqa: S301
    result = method()
    assert (3, "default") == (asyncio.run(result) if name == "coroutine" else result)
    of_class = getattr(AtModuleLevel, name)
    assert of_class == pickle.loads(pickle.dumps(of_class))  # noqa: S301


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_instances_are_copied(how, in_thread):
    """A copy has the attributes, and its methods work."""
    instance = in_thread(AtModuleLevel, 3)
    again = how(instance)
    assert 3 == again.seen()[0]
    assert (3, 3) == instance.seen()


def test_instance_attributes_are_its_own(worker_class, made):
    """Nothing of ours is among the attributes of an instance."""
    assert {} == vars(made(worker_class))
