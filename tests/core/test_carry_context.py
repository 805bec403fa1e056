"""`@carry_context` on functions and methods."""

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

import ctxcarry
from ctxcarry import UnknownCarrierError, carry_context, policy, suppress

TIMEOUT = 30

variable = ContextVar("variable", default="default")


@carry_context
def at_module_level(first: int, *, second: str = "two") -> str:
    """Say what was given."""
    return f"{first} {second}"


@carry_context
async def async_at_module_level():
    """Say something later."""
    return variable.get()


class Holder:
    """Decorated methods of every kind; pickled as instances and by their methods."""

    value = 6

    @carry_context
    def method(self, *args):
        """Return all there is."""
        return self.value, args, variable.get()

    @carry_context
    @classmethod
    def outer_class(cls, *args):
        return cls.__name__, args, variable.get()

    @classmethod
    @carry_context
    def inner_class(cls, *args):
        return cls.__name__, args, variable.get()

    @carry_context
    @staticmethod
    def outer_static(*args):
        return "static", args, variable.get()

    @staticmethod
    @carry_context
    def inner_static(*args):
        return "static", args, variable.get()

    @carry_context
    async def coroutine(self):
        return self.value, variable.get()

    @carry_context
    def generator(self):
        yield self.value, variable.get()

    def __eq__(self, other):
        return type(other) is Holder

    __hash__ = None


class Child(Holder):
    """Overrides one of them."""

    value = 7

    def method(self, *args):
        return "child", *super().method(*args)


@pytest.fixture(autouse=True)
def served():
    """Decorating something puts on the patches that other tests take off."""
    carry_context(print)


@pytest.fixture
def plain():
    """Return a plain pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def look(*_, **__):
    """Say what is set here."""
    return variable.get()


# ---------------------------------------------------------------- handing over


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


# ---------------------------------------------------------------- only, exclude, policies


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


# ---------------------------------------------------------------- decorated twice


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


# ---------------------------------------------------------------- looks


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


# ---------------------------------------------------------------- pickling and copying

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


# ---------------------------------------------------------------- patches


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
