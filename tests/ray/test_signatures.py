"""The hidden argument: Ray's checks know nothing of it, and no function of the user gets it."""

import inspect

import pytest
import ray
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


def task(first, second=2, *, keyword=3):
    """Return the arguments."""
    return first, second, keyword


class Actor:
    """An actor with signatures of all kinds."""

    def __init__(self, first, *, keyword=1):
        self.given = first, keyword

    def init_arguments(self):
        """Return what ``__init__`` was given."""
        return self.given

    def method(self, first, second=2):
        """Return the arguments."""
        return first, second

    def anything(self, *args, **kwargs):
        """Return the arguments."""
        return args, kwargs

    async def async_anything(self, *args, **kwargs):
        """Return the arguments."""
        return args, kwargs

    async def async_stream(self, *args, **kwargs):
        """Yield the arguments."""
        yield args, kwargs

    @staticmethod
    def static_anything(*args, **kwargs):
        """Return the arguments."""
        return args, kwargs

    @classmethod
    def class_anything(cls, *args, **kwargs):
        """Return the arguments."""
        return args, kwargs


def refused(call):
    """Return the message with which a call is refused at once."""
    with pytest.raises(TypeError) as caught:
        call()
    return str(caught.value)


def test_wrong_arguments_of_a_task(something_set):
    """Wrong arguments of a task are refused at the call, in the words of plain Ray."""
    carried, plain = ctxcarry.ray.remote(task), ray.remote(task)
    with something_set():
        for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"other": 1})):
            told = [
                refused(lambda f=f, a=args, k=kwargs: f.remote(*a, **k)) for f in (carried, plain)
            ]
            assert told[0] == told[1]
            assert "ctxcarry" not in told[0]
        assert (1, 2, 4) == ray.get(carried.remote(1, keyword=4))


def test_wrong_arguments_of_an_actor(made, variable_set):
    """Wrong arguments of an actor and of its methods are refused in the words of plain Ray."""
    carried, plain = ctxcarry.ray.remote(Actor), ray.remote(Actor)
    with variable_set():
        handles = made(carried, 1), made(plain, 1)
        told = [refused(lambda c=c: c.remote(1, 2)) for c in (carried, plain)]
        told += [refused(lambda h=h: h.method.remote()) for h in handles]
        told += [refused(lambda h=h: h.method.remote(1, other=2)) for h in handles]
    assert told[::2] == told[1::2]
    assert [] == [message for message in told if "ctxcarry" in message]


def test_no_function_of_the_user_gets_it(made, something_set):
    """Functions and methods that take anything get what was passed, and no more."""

    def anything(*args, **kwargs):
        return args, kwargs

    def stream(*args, **kwargs):
        yield args, kwargs

    expected = (1, 2), {"keyword": 3}
    tasks = ctxcarry.ray.remote(anything), ctxcarry.ray.remote(stream)
    actor = made(ctxcarry.ray.remote(Actor), 1, keyword=2)
    with something_set():
        found = [tasks[0].remote(1, 2, keyword=3), next(tasks[1].remote(1, 2, keyword=3))]
        methods = actor.anything, actor.async_anything, actor.static_anything, actor.class_anything
        found += [method.remote(1, 2, keyword=3) for method in methods]
        found.append(next(actor.async_stream.remote(1, 2, keyword=3)))
        assert [expected] * 7 == ray.get(found)
        assert (1, 2) == ray.get(actor.init_arguments.remote())


def test_signatures(made):
    """Signatures, names and documentation are the user's."""
    carried, handle = ctxcarry.ray.remote(task), made(ctxcarry.ray.remote(Actor), 1)
    cls = ctxcarry.ray.remote(Actor).__ray_actor_class__
    assert inspect.signature(task) == inspect.signature(carried._function)
    assert (task.__name__, task.__doc__) == (carried._function.__name__, carried._function.__doc__)
    assert inspect.signature(Actor) == inspect.signature(cls)
    assert (Actor.__name__, Actor.__doc__) == (cls.__name__, cls.__doc__)
    plain = made(ray.remote(Actor), 1)._ray_method_signatures
    found = handle._ray_method_signatures
    assert plain == {name: found[name] for name in plain}
    names = {parameter.name for parameters in found.values() for parameter in parameters}
    assert [] == [name for name in names if "ctxcarry" in name]


def test_names_and_repr(made):
    """Ray shows a carried actor and task under the user's names."""

    class Named:
        def __repr__(self):
            return "by itself"

        def name(self):
            return ray.get_runtime_context().get_task_name(), repr(self), type(self).__name__

    actor = made(ctxcarry.ray.remote(Named))
    assert ("Named.name", "by itself", "Named") == ray.get(actor.name.remote())
    assert repr(actor).startswith("Actor(")
    assert "Named" in repr(actor)


def test_what_is_neither_function_nor_class():
    """What plain Ray does not take is refused in its words."""
    for wrong in (7, work.Reader()):
        told = []
        for make in (ctxcarry.ray.remote, ray.remote):
            with pytest.raises((AssertionError, TypeError)) as caught:
                make(wrong)
            told.append((type(caught.value), str(caught.value)))
        assert told[0] == told[1]


def test_calling_directly(made):
    """A remote function or actor class that is called as a plain one is refused as by Ray."""
    for target in (task, Actor):
        carried, plain = ctxcarry.ray.remote(target), ray.remote(target)
        assert refused(lambda p=plain: p(1)) == refused(lambda c=carried: c(1))
