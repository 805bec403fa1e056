"""`@carry_context` on a class: what ``__init__`` set is there in every method, on any thread."""

import abc
import asyncio
import copy
import dataclasses
import enum
import gc
import inspect
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar

import pytest

import ctxcarry
from ctxcarry import ContextVarCarrier, UnknownCarrierError, carry_context, policy, suppress

TIMEOUT = 30

variable = ContextVar("variable", default="default")
bare = ContextVar("bare")


@pytest.fixture
def made(in_thread):
    """Return a function that makes an instance on another thread, whose context then ends."""
    return in_thread


@pytest.fixture
def worker_class(default_local):  # noqa: C901 - a method of every kind
    """Return a decorated class that sets contexts in its ``__init__``."""

    @carry_context
    class Worker:
        """Do some work."""

        def __init__(self, value="base"):
            """Set everything to `value`."""
            variable.set(value)
            bare.set(value)
            default_local.value = value

        def seen(self, *args, **kwargs):
            """Say what is set."""
            found = variable.get(), bare.get(None), getattr(default_local, "value", None)
            return (*found, args, kwargs) if args or kwargs else found

        def set(self, value):
            variable.set(value)
            default_local.value = value

        def fail(self):
            raise ValueError("mine")

        def unset(self):
            del default_local.value

        async def coroutine(self):
            await asyncio.sleep(0)
            return self.seen()

        def generator(self):
            for _ in range(2):
                yield self.seen()

        async def stream(self):
            for _ in range(2):
                await asyncio.sleep(0)
                yield self.seen()

        @staticmethod
        def static():
            return variable.get()

        @classmethod
        def of_class(cls):
            return cls, variable.get()

        @property
        def prop(self):
            return "prop"

        def __call__(self):
            return variable.get()

        def __enter__(self):
            return variable.get()

        def __exit__(self, *_):
            return None

    return Worker


BASE = ("base", "base", "base")
NOTHING = ("default", None, None)


@pytest.fixture
def here(default_local):
    """Return a function that says what is set here."""
    return lambda: (variable.get(), bare.get(None), getattr(default_local, "value", None))


# ---------------------------------------------------------------- base and caller


def test_method_sees_the_base(worker_class, made, here, in_thread):
    """On any thread a method sees what ``__init__`` set, and the thread is as before."""
    worker = made(worker_class)
    assert NOTHING == here()
    assert BASE == worker.seen()
    assert NOTHING == here()
    assert (BASE, NOTHING) == in_thread(lambda: (worker.seen(), here()))


def test_callers_values_win(worker_class, made, default_local, here):
    """What the caller has set is what a method sees; the base stands in for the rest."""
    worker = made(worker_class)
    variable.set("caller")
    assert ("caller", "base", "base") == worker.seen()
    default_local.value = "caller"
    assert ("caller", "base", "caller") == worker.seen()
    assert ("caller", None, "caller") == here()


def test_none_of_the_caller_wins(worker_class, made, default_local):
    """None is a value of the caller's."""
    worker = made(worker_class)
    variable.set(None)
    bare.set(None)
    default_local.value = None
    assert (None, None, None) == worker.seen()


def test_base_is_that_of_the_end_of_init(worker_class, made):
    """The base is what was set when ``__init__`` had finished, also by its caller."""
    worker = made(worker_class, "other")
    assert ("other", "other", "other") == worker.seen()


def test_what_was_set_around_init_belongs_to_the_base(default_local, in_thread):
    """The base is the context after ``__init__``, whoever had set it."""

    @carry_context
    class Plain:
        def seen(self):
            return variable.get(), default_local.value

    def make():
        variable.set("around")
        default_local.value = "around"
        return Plain()

    assert ("around", "around") == in_thread(make).seen()


def test_each_instance_has_its_own_base(worker_class, made):
    """Two instances do not share a base."""
    one, two = made(worker_class, 1), made(worker_class, 2)
    assert [(1, 1, 1), (2, 2, 2)] == [one.seen(), two.seen()]


def test_arguments_arrive(worker_class, made):
    """Arguments of a method arrive, whatever their names (trap 12)."""
    worker = made(worker_class)
    arguments = {n: n.upper() for n in ("fn", "base", "args", "kwargs", "instance", "method")}
    assert (*BASE, (1, 2), arguments) == worker.seen(1, 2, **arguments)


def test_keyword_named_self(made):
    """A keyword argument may be called ``self``, for ``__init__`` and for methods (trap 12)."""

    class Base:
        def __init__(this, **kwargs):  # noqa: N805
            this.kwargs = kwargs

        def method(this, **kwargs):  # noqa: N805
            return kwargs

    @carry_context
    class Inherits(Base):
        pass

    @carry_context
    class Defines(Base):
        def __init__(this, **kwargs):  # noqa: N805
            super().__init__(**kwargs)

    for cls in (Inherits, Defines):
        assert {"self": 1} == cls(self=1).kwargs
        assert {"self": 2} == cls().method(self=2)


# ---------------------------------------------------------------- what a method sets


def test_what_a_method_sets_stays_set(worker_class, made, here, default_local):
    """A method may be there to set something up: it stays set on that thread."""
    worker = made(worker_class)
    worker.set("method")
    assert ("method", None, "method") == here()
    assert ("method", "base", "method") == worker.seen()


def test_what_a_method_sets_stays_on_that_thread(worker_class, made, here):
    """What a method sets on one thread is not there on another."""
    worker = made(worker_class)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(worker.set, "there").result(TIMEOUT)
        assert ("there", None, "there") == pool.submit(here).result(TIMEOUT)
        assert ("there", "base", "there") == pool.submit(worker.seen).result(TIMEOUT)
    assert (BASE, NOTHING) == (worker.seen(), here())


def test_what_a_method_unsets_of_the_base(worker_class, made, here):
    """A method that deletes what stood in leaves the thread with nothing set."""
    worker = made(worker_class)
    worker.unset()
    assert NOTHING == here()
    assert BASE == worker.seen()


def test_method_that_changes_a_container_in_place(default_local, in_thread):
    """Changing what stood in does not change the base; the next call sees it as it was."""

    @carry_context
    class Worker:
        def __init__(self):
            default_local.stack = ["base"]

        def push(self):
            default_local.stack.append("pushed")
            return list(default_local.stack)

        def stack(self):
            return list(default_local.stack)

    worker = in_thread(Worker)
    assert ["base", "pushed"] == worker.push()
    with ThreadPoolExecutor(1) as pool:
        assert ["base"] == pool.submit(worker.stack).result(TIMEOUT)


def test_exception_of_a_method(worker_class, made, here):
    """An exception comes out as itself, and the thread is as before."""
    worker = made(worker_class)
    with pytest.raises(ValueError, match="mine") as caught:
        worker.fail()
    assert not getattr(caught.value, "__notes__", [])
    assert NOTHING == here()


def test_methods_that_call_methods(default_local, made):
    """A method called by another one sees what that one has set."""

    @carry_context
    class Worker:
        def __init__(self):
            variable.set("base")
            default_local.value = "base"

        def outer(self):
            variable.set("outer")
            default_local.value = "outer"
            return self.inner(), variable.get(), default_local.value

        def inner(self):
            return variable.get(), default_local.value

    assert (("outer", "outer"), "outer", "outer") == made(Worker).outer()


def test_recursion(default_local, made):
    """A method may call itself, and each level sees the same."""

    @carry_context
    class Worker:
        def __init__(self):
            default_local.value = "base"

        def down(self, depth):
            return [default_local.value, *(self.down(depth - 1) if depth else [])]

    assert ["base"] * 4 == made(Worker).down(3)


def test_several_threads_at_once(worker_class, made):
    """Methods run on several threads at the same moment."""
    worker = made(worker_class)
    together = threading.Barrier(4)

    def work(number):
        if number % 2:
            variable.set(number)
        together.wait(TIMEOUT)
        return worker.seen()

    with ThreadPoolExecutor(4) as pool:
        results = [f.result(TIMEOUT) for f in [pool.submit(work, n) for n in range(4)]]
    assert [(n if n % 2 else "base", "base", "base") for n in range(4)] == results


# ---------------------------------------------------------------- through pools


def test_methods_in_a_carrying_pool(worker_class, made, default_local):
    """In a carrying pool the submitter is the caller."""
    worker = made(worker_class)
    with ctxcarry.executor(1) as pool:
        assert BASE == pool.submit(worker.seen).result(TIMEOUT)
        variable.set("caller")
        assert ("caller", "base", "base") == pool.submit(worker.seen).result(TIMEOUT)


def test_made_in_a_pool(worker_class):
    """An instance made by a task has the base that the task's ``__init__`` set."""
    with ctxcarry.executor(1) as pool, ThreadPoolExecutor(1) as plain:
        for each in (pool, plain):
            assert BASE == each.submit(worker_class).result(TIMEOUT).seen()


# ---------------------------------------------------------------- kinds of methods


def test_coroutine_method(worker_class, made, here):
    """An async method sees the caller's values and then the base, at each step."""
    worker = made(worker_class)

    async def main():
        variable.set("caller")
        coroutine = worker.coroutine()
        variable.set("later")
        return await coroutine, here()

    assert (("caller", "base", "base"), ("later", None, None)) == asyncio.run(main())


def test_generator_method(worker_class, made, here):
    """A generator method sees the caller's values and then the base, at each step."""
    worker = made(worker_class)
    variable.set("caller")
    generator = worker.generator()
    variable.set("later")
    assert [("caller", "base", "base")] * 2 == list(generator)
    assert ("later", None, None) == here()


def test_async_generator_method(worker_class, made):
    """An async generator method does too."""
    worker = made(worker_class)

    async def main():
        variable.set("caller")
        return [found async for found in worker.stream()]

    assert [("caller", "base", "base")] * 2 == asyncio.run(main())


def test_concurrent_coroutine_methods(worker_class, made):
    """Coroutines of one instance, gathered, see each its caller."""
    worker = made(worker_class)

    async def call(number):
        variable.set(number)
        return await worker.coroutine()

    async def main():
        return await asyncio.gather(*(call(n) for n in range(3)))

    assert [(n, "base", "base") for n in range(3)] == asyncio.run(main())


def test_special_methods(worker_class, made):
    """`__call__` and the context manager methods see the base too."""
    worker = made(worker_class)
    assert "base" == worker()
    with worker as entered:
        assert "base" == entered
    assert "default" == variable.get()


def test_iterators(made):  # noqa: C901 - a method of every kind
    """`__iter__` and `__next__`, and their async kin, see the base."""

    @carry_context
    class Stream:
        def __init__(self):
            variable.set("base")
            self.left = 2

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return variable.get()

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return variable.get()

        async def __aenter__(self):
            return variable.get()

        async def __aexit__(self, *_):
            return None

    assert ["base", "base"] == list(made(Stream))

    async def main():
        async with made(Stream) as entered:
            return entered, [found async for found in made(Stream)]

    assert ("base", ["base", "base"]) == asyncio.run(main())


def test_other_attributes_are_left_alone(worker_class, made):
    """Static and class methods, properties and constants are as they were."""
    worker = made(worker_class)
    assert "default" == worker.static() == worker_class.static()
    assert (worker_class, "default") == worker.of_class() == worker_class.of_class()
    assert "prop" == worker.prop


def test_decorated_method_of_a_decorated_class(default_local, made):
    """A method that is decorated too is handed over with its submitter's context, over the base."""

    @carry_context
    class Worker:
        def __init__(self):
            bare.set("base")

        @carry_context
        def seen(self):
            return variable.get(), bare.get(None)

    worker = made(Worker)
    variable.set("near")
    assert ("near", "base") == worker.seen()
    with ThreadPoolExecutor(1) as pool:
        assert ("near", "base") == pool.submit(worker.seen).result(TIMEOUT)


def test_method_called_on_the_class(worker_class, made):
    """A method taken from the class sees the base of the instance it is given."""
    assert BASE == worker_class.seen(made(worker_class))


def test_method_called_within_init(default_local):
    """Within ``__init__`` there is no base yet, and methods just run."""

    @carry_context
    class Worker:
        def __init__(self):
            self.first = self.seen()
            variable.set("base")
            self.second = self.seen()

        def seen(self):
            return variable.get()

    worker = Context().run(Worker)
    assert ("default", "base", "base") == (worker.first, worker.second, worker.seen())


# ---------------------------------------------------------------- classes of every kind


def test_class_without_init():
    """A class without ``__init__`` is decorated like any other."""

    @carry_context
    class Plain:
        def seen(self):
            return variable.get()

    assert "default" == Plain().seen()
    with pytest.raises(TypeError):
        Plain(1)


def test_class_with_new_only(in_thread):
    """A class whose arguments go to ``__new__`` is made as before."""

    @carry_context
    class Pair:
        def __new__(cls, one, two):
            self = super().__new__(cls)
            self.both = one, two
            variable.set("base")
            return self

        def seen(self):
            return self.both, variable.get()

    assert ((1, 2), "base") == in_thread(Pair, 1, 2).seen()
    assert ((1, 2), "base") == in_thread(Pair, one=1, two=2).seen()


def test_dataclass(in_thread):
    """A dataclass is decorated like any other, and compares as before."""

    @carry_context
    @dataclasses.dataclass
    class Data:
        one: int
        two: int = 2

        def __post_init__(self):
            variable.set("base")

        def seen(self):
            return self.one + self.two, variable.get()

    data = in_thread(Data, 1)
    assert (3, "base") == data.seen()
    assert data == Data(1)
    assert "two=2" in repr(data)


def test_abstract_class(in_thread):
    """An abstract class stays abstract, and its subclasses carry."""

    @carry_context
    class Shape(abc.ABC):
        def __init__(self):
            variable.set("base")

        @abc.abstractmethod
        def area(self):
            """Return the area."""

    with pytest.raises(TypeError, match="abstract"):
        Shape()

    class Square(Shape):
        def area(self):
            return variable.get()

    assert "base" == in_thread(Square).area()


def test_exception_class(in_thread):
    """An exception class can be decorated, raised and caught."""

    @carry_context
    class Problem(Exception):
        def seen(self):
            return variable.get(), self.args

    def make():
        variable.set("base")
        return Problem(1, 2)

    assert ("base", (1, 2)) == in_thread(make).seen()


def test_subclass_chain(in_thread):
    """A subclass carries too; its base is what the whole chain of ``__init__`` set."""

    @carry_context
    class First:
        def __init__(self):
            variable.set("first")
            bare.set("first")

        def inherited(self):
            return variable.get(), bare.get(None)

        def overridden(self):
            return "first", variable.get()

    class Second(First):
        def __init__(self):
            super().__init__()
            variable.set("second")

        def overridden(self):
            return super().overridden(), variable.get()

        def own(self):
            return variable.get(), bare.get(None)

    class Third(Second):
        pass

    for cls in (Second, Third):
        instance = in_thread(cls)
        assert ("second", "first") == instance.inherited() == instance.own()
        assert (("first", "second"), "second") == instance.overridden()
    assert ("first", "first") == in_thread(First).inherited()


def test_subclass_that_sets_before_and_after(in_thread):
    """A method called by a base's ``__init__`` sees what was set so far."""

    @carry_context
    class First:
        def __init__(self):
            bare.set("first")
            self.early = self.seen()

        def seen(self):
            return variable.get(), bare.get(None)

    class Second(First):
        def __init__(self):
            variable.set("before")
            super().__init__()
            variable.set("after")
            self.late = self.seen()

    instance = in_thread(Second)
    assert (("before", "first"), ("after", "first")) == (instance.early, instance.late)
    assert ("after", "first") == instance.seen()


def test_subclass_that_does_not_call_its_bases_init(in_thread):
    """A subclass that makes its own start has the base that it set."""

    @carry_context
    class First:
        def __init__(self):
            variable.set("first")

        def seen(self):
            return variable.get()

    class Second(First):
        def __init__(self):
            variable.set("second")

    assert "second" == in_thread(Second).seen()


def test_decorated_subclass_of_a_plain_class(in_thread):
    """Methods that a decorated class inherits see the base; the plain class stays plain."""

    class Plain:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get()

    before = dict(vars(Plain))

    @carry_context
    class Carried(Plain):
        pass

    assert "base" == in_thread(Carried).seen()
    assert "default" == in_thread(Plain).seen()
    assert before == dict(vars(Plain))


def test_diamond_keeps_the_order_of_methods():
    """Decorating a class does not change which method cooperative inheritance finds."""

    class Top:
        def __init__(self):
            self.order = ["top"]

        def who(self):
            return ["top"]

    @carry_context
    class Left(Top):
        pass

    class Right(Top):
        def __init__(self):
            super().__init__()
            self.order.append("right")

        def who(self):
            return ["right", *super().who()]

    class Bottom(Left, Right):
        pass

    assert ["right", "top"] == Bottom().who()
    assert ["top", "right"] == Bottom().order


def test_init_subclass_of_the_class_is_kept():
    """The class's own ``__init_subclass__`` is still called, with its arguments."""
    calls = []

    @carry_context
    class First:
        def __init_subclass__(cls, *, mark, **kwargs):
            super().__init_subclass__(**kwargs)
            calls.append((cls.__name__, mark))

    class Second(First, mark=1):
        pass

    class Third(Second, mark=2):
        pass

    assert [("Second", 1), ("Third", 2)] == calls


def test_init_subclass_in_a_diamond():
    """Every ``__init_subclass__`` of a cooperative hierarchy is called."""
    calls = []

    @carry_context
    class Left:
        pass

    class Right:
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            calls.append(cls.__name__)

    class Bottom(Left, Right):
        pass

    assert ["Bottom"] == calls
    assert Bottom()


def test_decorated_twice(in_thread):
    """Decorated twice, or with a decorated base, a method has one layer and carries."""

    @carry_context
    @carry_context
    class First:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get(), len(inspect.stack())

    @carry_context
    class Second(First):
        pass

    @carry_context
    class Once:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get(), len(inspect.stack())

    def both(cls):
        return in_thread(cls).seen()

    assert both(Once) == both(First) == both(Second)


def test_slots(in_thread):
    """A class with slots needs ``__weakref__`` among them, and is told so."""

    @carry_context
    class Ready:
        __slots__ = ("__weakref__", "value")

        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get()

    assert "base" == in_thread(Ready).seen()

    @carry_context
    class Tight:
        __slots__ = ("value",)

        def __init__(self):
            self.value = 1

    with pytest.raises(TypeError, match="__weakref__"):
        Tight()


def test_unhashable_and_equal_instances(in_thread):
    """Instances that compare equal, or have no hash, have each its own base."""

    @carry_context
    class Same:
        def __init__(self, value):
            variable.set(value)

        def __eq__(self, other):
            return True

        __hash__ = None

        def seen(self):
            return variable.get()

    one, two = in_thread(Same, 1), in_thread(Same, 2)
    assert [1, 2] == [one.seen(), two.seen()]


def test_enum_members_still_work():
    """A class that is no ordinary one is refused or works, and does not break."""

    @carry_context
    class Color(enum.Enum):
        RED = 1

        def seen(self):
            return self.value, variable.get()

    assert (1, "default") == Color.RED.seen()
    assert Color.RED is Color(1)


# ---------------------------------------------------------------- looks, pickling, copying


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


# ---------------------------------------------------------------- what is kept


class Big:
    """Something that should not be kept."""


def test_base_goes_with_its_instance(default_local, in_thread, is_collected):
    """When an instance is collected, so is what its base held."""

    @carry_context
    class Worker:
        def __init__(self):
            bigs = Big(), Big()
            references.extend(map(weakref.ref, bigs))
            variable.set(bigs[0])
            default_local.value = bigs[1]

        def seen(self):
            return type(variable.get())

    references = []
    worker = in_thread(Worker)
    assert Big is worker.seen()
    assert [False, False] == [r() is None for r in references]
    references.append(weakref.ref(worker))
    del worker
    assert [True] * 3 == [is_collected(r) for r in references]


def test_many_instances_leave_nothing(in_thread):
    """Bases of instances that are gone are gone too, and numbers used again do no harm."""
    from ctxcarry import _decorate_class

    @carry_context
    class Worker:
        def __init__(self, value):
            variable.set(value)

        def seen(self):
            return variable.get()

    def make():
        return [Worker(n).seen() for n in range(200)]

    gc.collect()
    before = len(_decorate_class._bases)
    assert list(range(200)) == in_thread(make)
    gc.collect()
    assert before == len(_decorate_class._bases)


def test_exception_of_a_method_keeps_no_base(in_thread, is_collected):
    """An exception that is kept does not keep the base of an instance that is gone."""

    @carry_context
    class Worker:
        def __init__(self):
            big = Big()
            references.append(weakref.ref(big))
            variable.set(big)

        def fail(self):
            del self
            raise ValueError("mine")

    references = []

    def call():
        try:
            in_thread(Worker).fail()
        except ValueError as error:
            return error

    error = call()
    error.__traceback__ = error.__traceback__.tb_next  # this test's own frame
    assert is_collected(references[0])
    assert "mine" == str(error)


def test_init_that_fails(in_thread):
    """An ``__init__`` that raises raises that, and nothing is noted."""
    from ctxcarry import _decorate_class

    @carry_context
    class Worker:
        def __init__(self):
            raise ValueError("mine")

    before = len(_decorate_class._bases)
    with pytest.raises(ValueError, match="mine"):
        in_thread(Worker)
    assert before == len(_decorate_class._bases)


# ---------------------------------------------------------------- only, exclude, policies


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
