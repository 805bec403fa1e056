"""An instance's base and its caller, and what a method sets."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from carry_class_subjects import BASE, TIMEOUT, bare, variable

from ctxcarry import carry_context

NOTHING = ("default", None, None)


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
