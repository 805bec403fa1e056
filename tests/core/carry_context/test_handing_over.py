"""Decorated functions, handed over."""

import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from carry_context_subjects import TIMEOUT, Holder, look, variable

from ctxcarry import carry_context


class Child(Holder):
    """Overrides one of them."""

    value = 7

    def method(self, *args):
        return "child", *super().method(*args)


def test_submit_and_map_of_a_plain_pool(plain, default_local):
    """A decorated function carries the context of whoever hands it to any pool."""

    @carry_context
    def decorated(*_):
        return variable.get(), default_local.value

    variable.set("near")
    default_local.value = "near"
    future, results = plain.submit(decorated), plain.map(decorated, range(2))
    variable.set("later")
    default_local.value = "later"
    assert ("near", "near") == future.result(TIMEOUT)
    assert [("near", "near")] * 2 == list(results)


def test_other_callables_are_not_touched(plain):
    """A callable that is not decorated runs as in any plain pool."""
    carry_context(look)
    variable.set("near")
    assert "default" == plain.submit(look).result(TIMEOUT)
    assert ["default"] == list(plain.map(look, [0]))
    assert "default" == plain.submit(functools.partial(look, 1)).result(TIMEOUT)


def test_plain_call_just_calls():
    """Called, a decorated function sees the context of the call."""
    decorated = carry_context(look)
    variable.set("near")
    assert "near" == decorated()
    variable.set("later")
    assert "later" == decorated(1, k=2)


def test_plain_call_may_set():
    """What a decorated function sets in a plain call stays set, as for any function."""

    @carry_context
    def decorated():
        variable.set("set")

    decorated()
    assert "set" == variable.get()


def test_keyword_arguments_may_have_any_name(plain):
    """No keyword argument collides with one of ours (trap 12)."""
    names = ["fn", "func", "self", "args", "kwargs", "wrapped", "instance", "policy", "target"]
    arguments = {name: name.upper() for name in names}
    decorated = carry_context(lambda *a, **k: (a, k))
    assert ((1,), arguments) == decorated(1, **arguments)
    assert ((1,), arguments) == decorated.bind()(1, **arguments)
    assert ((1,), arguments) == plain.submit(decorated, 1, **arguments).result(TIMEOUT)

    @carry_context
    def generate(*args, **kwargs):
        yield args, kwargs

    assert [((1,), arguments)] == list(generate(1, **arguments))


def test_bind(plain):
    """`bind` takes the context of this moment, for anywhere and as often as wanted."""
    decorated = carry_context(look)
    variable.set("near")
    bound = decorated.bind()
    variable.set("later")
    assert ["near", "near", "later"] == [bound(), bound(), decorated()]
    assert "near" == plain.submit(bound).result(TIMEOUT)
    with ThreadPoolExecutor(1) as other:
        assert ["near"] == list(other.map(bound, [0]))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(bound()))
    thread.start()
    thread.join(TIMEOUT)
    assert ["near"] == seen


def test_bound_methods(plain):
    """A decorated method carries, with its instance, also under `super()`."""
    variable.set("near")
    assert (6, (1,), "near") == plain.submit(Holder().method, 1).result(TIMEOUT)
    assert (6, (), "near") == plain.submit(Holder.method, Holder()).result(TIMEOUT)
    assert [(6, (5,), "near")] == list(plain.map(Holder().method, [5]))
    assert ("child", 7, (2,), "near") == Child().method(2)
    assert "default" == plain.submit(Child().method).result(TIMEOUT)[-1]
    bound = Holder().method.bind()
    variable.set("later")
    assert (6, (3,), "near") == bound(3)


@pytest.mark.parametrize("name", ["outer_class", "inner_class"])
@pytest.mark.parametrize(
    "owner",
    [Holder, Holder(), Child, Child()],
    ids=["class", "instance", "subclass", "its instance"],
)
def test_class_methods(name, owner, plain):
    """A decorated class method carries, with its class, in either order of the decorators."""
    variable.set("near")
    method = getattr(owner, name)
    expected = (owner if isinstance(owner, type) else type(owner)).__name__
    assert (expected, (1,), "near") == method(1)
    assert (expected, (1,), "near") == plain.submit(method, 1).result(TIMEOUT)
    assert [(expected, (1,), "near")] == list(plain.map(method, [1]))
    assert (expected, (1,), "near") == plain.submit(functools.partial(method, 1)).result(TIMEOUT)
    if name == "inner_class" and sys.version_info >= (3, 13):
        return  # since then a classmethod leaves the class out of what it holds: write it inside
    bound = method.bind()
    variable.set("later")
    assert (expected, (2,), "near") == bound(2)


@pytest.mark.parametrize("name", ["outer_static", "inner_static"])
@pytest.mark.parametrize("owner", [Holder, Holder()], ids=["class", "instance"])
def test_static_methods(name, owner, plain):
    """A decorated static method carries, in either order of the decorators."""
    variable.set("near")
    method = getattr(owner, name)
    assert ("static", (1,), "near") == method(1)
    assert ("static", (1,), "near") == plain.submit(method, 1).result(TIMEOUT)


def test_partials(plain):
    """A partial of a decorated function carries, however deep."""
    variable.set("near")
    once = functools.partial(carry_context(lambda *a, **k: (a, k, variable.get())), 1, k=2)
    twice = functools.partial(once, 3)
    assert ((1,), {"k": 2}, "near") == plain.submit(once).result(TIMEOUT)
    assert ((1, 3, 4), {"k": 2}, "near") == plain.submit(twice, 4).result(TIMEOUT)
    assert [((1, 3, 4), {"k": 2}, "near")] == list(plain.map(twice, [4]))


def test_decorated_partial(plain):
    """A partial can itself be decorated."""
    variable.set("near")
    decorated = carry_context(functools.partial(look, 1))
    assert "near" == plain.submit(decorated).result(TIMEOUT)


class CallMe:
    """A callable object."""

    def __call__(self, *args):
        return "called", args, variable.get()


@pytest.mark.parametrize(
    "fn", [CallMe(), functools.partial(look), variable.get], ids=lambda f: type(f).__name__
)
def test_other_callables_as_class_attributes(fn, plain):
    """What is no function is not bound when it is an attribute of a class, decorated or not."""

    class Owner:
        undecorated = fn
        decorated = carry_context(fn)

    variable.set("near")
    for owner in (Owner, Owner()):
        if isinstance(fn, functools.partial) and owner is not Owner:
            continue  # a partial becomes a method with Python 3.14
        assert owner.undecorated() == owner.decorated()
        assert owner.undecorated() == plain.submit(owner.decorated).result(TIMEOUT)


def test_class_with_a_metaclass_call_is_a_class():
    """What cannot be called is a TypeError at the decoration."""
    for wrong in (3, "name", object()):
        with pytest.raises(TypeError, match="carry_context"):
            carry_context(wrong)


def test_nested_submits_carry_on(plain):
    """A decorated function that submits another one hands its own context on."""
    inner = carry_context(look)

    @carry_context
    def outer():
        variable.set("inner")
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner).result(TIMEOUT)

    variable.set("near")
    assert "inner" == plain.submit(outer).result(TIMEOUT)


def test_worker_is_clean_after_a_task(plain, default_local, on_worker):
    """The pool's thread is the same after a decorated task as before."""

    @carry_context
    def task():
        variable.set("task")
        default_local.value = "task"

    variable.set("near")
    default_local.value = "near"
    plain.submit(task).result(TIMEOUT)
    assert ("default", {}) == on_worker(plain, lambda: (variable.get(), dict(vars(default_local))))
