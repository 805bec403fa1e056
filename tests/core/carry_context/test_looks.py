"""Decorated functions look, pickle and copy as before; patches."""

import asyncio
import copy
import functools
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from carry_context_subjects import TIMEOUT, Holder, look, variable

import ctxcarry
from ctxcarry import carry_context


@carry_context
def at_module_level(first: int, *, second: str = "two") -> str:
    """Say what was given."""
    return f"{first} {second}"


@carry_context
async def async_at_module_level():
    """Say something later."""
    return variable.get()


def same_looks(one, other):
    """Fail unless two callables look the same to whoever inspects them."""
    assert inspect.signature(one) == inspect.signature(other)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(one, name) == getattr(other, name), name


def annotated(first: int, *, second: str = "two") -> str:
    """Say what was given."""
    return f"{first} {second}"


def test_function_looks():
    """Name, signature, documentation and annotations are those of the function."""
    decorated = carry_context(annotated)
    same_looks(annotated, decorated)
    assert inspect.isfunction(decorated)
    assert callable(decorated)
    assert inspect.getsource(annotated) == inspect.getsource(decorated)
    assert {"first": int, "second": str, "return": str} == inspect.get_annotations(decorated)
    assert annotated is inspect.unwrap(decorated)
    assert (annotated == decorated, hash(annotated)) == (True, hash(decorated))


def test_method_looks():
    """A bound method still looks like one."""

    class Plain:
        def method(self, first: int = 1) -> int:
            """Return something."""

    undecorated = Plain.method
    Plain.method = carry_context(undecorated)
    assert inspect.signature(undecorated) == inspect.signature(Plain.method)
    instance = Plain()
    assert ["first"] == list(inspect.signature(instance.method).parameters)
    assert inspect.ismethod(instance.method)
    assert instance is instance.method.__self__
    assert "Return something." == instance.method.__doc__
    assert instance.method == instance.method


@pytest.mark.parametrize("via", ["carry_context", "bind"])
@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        ("async def fn(x): return x", inspect.iscoroutinefunction),
        ("async def fn(x): return x", asyncio.iscoroutinefunction),
        ("def fn(x): yield x", inspect.isgeneratorfunction),
        ("async def fn(x): yield x", inspect.isasyncgenfunction),
        ("def fn(x): return x", inspect.isfunction),
    ],
)
@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")
def test_kinds_are_recognised(kind, asks, via):
    """A decorated function is recognised as the kind of function that it is."""
    names = {}
    exec(kind, names)  # noqa: S102 - the sources are above
    decorated = carry_context(names["fn"])
    if via == "bind":
        if asks is inspect.isfunction:
            return
        decorated = decorated.bind()
    assert asks(decorated)
    assert "fn" == decorated.__name__
    assert ["x"] == list(inspect.signature(decorated).parameters)


@pytest.mark.parametrize("name", ["coroutine", "generator"])
def test_method_kinds_are_recognised(name):
    """Methods that are coroutine or generator functions are recognised."""
    asks = {"coroutine": inspect.iscoroutinefunction, "generator": inspect.isgeneratorfunction}
    assert asks[name](getattr(Holder(), name))
    assert asks[name](getattr(Holder, name))


def test_own_attributes():
    """Attributes of the function can be read and set through the decorated one."""

    def fn():
        pass

    fn.mark = 1
    decorated = carry_context(fn)
    decorated.other = 2
    assert (1, 2) == (decorated.mark, fn.other)


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_functions_pickle_by_name(protocol):
    """A decorated function pickles as what its name stands for."""
    for fn in (at_module_level, async_at_module_level):
        assert fn is pickle.loads(pickle.dumps(fn, protocol))  # noqa: S301


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_methods_pickle(protocol, plain):
    """A method of an instance pickles with the instance, and still carries."""
    variable.set("near")
    method = pickle.loads(pickle.dumps(Holder().method, protocol))  # noqa: S301
    assert (6, (1,), "near") == plain.submit(method, 1).result(TIMEOUT)
    assert isinstance(method.__self__, Holder)


@pytest.mark.parametrize(
    "name", ["method", "outer_class", "inner_class", "outer_static", "inner_static", "coroutine"]
)
def test_methods_of_a_class_pickle(name, plain):
    """Methods taken from the class pickle by their qualified name, and still carry."""
    variable.set("near")
    method = pickle.loads(pickle.dumps(getattr(Holder, name)))  # noqa: S301
    assert getattr(Holder, name) == method
    if name not in {"method", "coroutine"}:
        assert "near" == plain.submit(method, 1).result(TIMEOUT)[-1]


def test_partial_of_a_decorated_function_pickles():
    """A partial of a decorated function pickles."""
    again = pickle.loads(pickle.dumps(functools.partial(at_module_level, 1)))  # noqa: S301
    assert at_module_level is again.func
    assert "1 two" == again()


def test_instances_with_decorated_methods_pickle():
    """An instance whose class has decorated methods pickles as any other."""
    assert Holder() == pickle.loads(pickle.dumps(Holder()))  # noqa: S301


@pytest.mark.parametrize("fn", [at_module_level, async_at_module_level, carry_context(look)])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_functions_are_copied_as_themselves(how, fn):
    """What refers to a decorated function is copied as if it were a plain one."""
    assert fn is how(fn)
    assert fn is how({"fn": fn})["fn"]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_methods_are_copied(how, plain):
    """A bound decorated method can be copied, and still carries."""
    variable.set("near")
    again = how(Holder().method)
    assert (6, (1,), "near") == plain.submit(again, 1).result(TIMEOUT)


def test_patches_go_with_uninstall(plain):
    """`uninstall()` takes the patches off; a decoration or `install` puts them on again."""
    decorated = carry_context(look)
    original = ThreadPoolExecutor.submit.__wrapped__
    variable.set("near")
    assert "near" == plain.submit(decorated).result(TIMEOUT)
    ctxcarry.uninstall()
    assert original is vars(ThreadPoolExecutor)["submit"]
    assert "map" not in vars(ThreadPoolExecutor)
    assert "default" == plain.submit(decorated).result(TIMEOUT)
    assert "near" == ctxcarry.executor(1).submit(decorated).result(TIMEOUT)
    carry_context(look)
    assert "near" == plain.submit(decorated).result(TIMEOUT)


def test_patches_are_not_reported_as_installed():
    """What the decorator needs is not listed as an installed boundary."""
    carry_context(look)
    assert () == ctxcarry.installed()


def test_decorated_under_install(plain, default_local):
    """With everything instrumented a decorated function still has its own names."""
    only = carry_context(only="contextvars")(
        lambda: (variable.get(), getattr(default_local, "value", None))
    )
    variable.set("near")
    default_local.value = "near"
    ctxcarry.install("executor")
    try:
        assert ("near", None) == plain.submit(only).result(TIMEOUT)
    finally:
        ctxcarry.uninstall("executor")
    assert ("near", None) == plain.submit(only).result(TIMEOUT)


def test_class_attribute_access_stays_cheap_and_equal():
    """Taking a function from its class twice gives the same thing."""
    assert Holder.method is Holder.method
    assert Holder.outer_static is Holder.outer_static
    assert Holder.inner_static is Holder().inner_static
