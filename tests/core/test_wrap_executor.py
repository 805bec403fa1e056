"""`wrap_executor`: a pool that exists already, made to carry."""

import asyncio
import functools
import threading
import weakref
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from contextvars import Context, ContextVar

import pytest

import ctxcarry
from ctxcarry import Registry, policy, suppress, wrap_executor

TIMEOUT = 30

variable = ContextVar("variable", default="default")


@pytest.fixture
def plain():
    """Return a plain pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def look(local):
    """Return a function that says what is set on the thread that calls it."""
    return lambda *_: (variable.get(), getattr(local, "value", None))


NOTHING = ("default", None)


def set_all(local, value):
    """Set everything here."""
    variable.set(value)
    local.value = value


@pytest.fixture
def instrumented():
    """Instrument every pool for one test."""
    ctxcarry.install("executor")
    yield
    ctxcarry.uninstall("executor")


class Immediate(Executor):
    """An executor of another kind: runs everything at once, in a new thread."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()

        def body():
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(TIMEOUT)
        return future


def test_submit_and_map_carry(plain, registry, local, look):
    """Through the wrapper each `submit` and each `map` carries; through the pool nothing does."""
    wrapped = wrap_executor(plain, registry=registry)
    set_all(local, "near")
    assert ("near", "near") == wrapped.submit(look).result(TIMEOUT)
    assert [("near", "near")] * 2 == list(wrapped.map(look, range(2)))
    assert NOTHING == plain.submit(look).result(TIMEOUT)
    assert [NOTHING] == list(plain.map(look, [0]))


def test_default_registry(plain, default_local):
    """Without `registry` the default one is used."""
    default_local.value = "near"
    wrapped = wrap_executor(plain)
    assert "near" == wrapped.submit(lambda: default_local.value).result(TIMEOUT)


def test_still_an_instance_of_its_class(plain):
    """The wrapper passes for the pool wherever one is asked for."""
    wrapped = wrap_executor(plain)
    assert isinstance(wrapped, ThreadPoolExecutor)
    assert plain._max_workers == wrapped._max_workers


def test_pool_is_not_changed(plain):
    """The pool itself keeps its methods and attributes."""
    before = dict(vars(plain))
    wrap_executor(plain)
    assert before == vars(plain)
    assert ThreadPoolExecutor is type(plain)


def test_as_a_context_manager(registry, local, look):
    """`with` gives the wrapper, and shuts the pool down."""
    plain = ThreadPoolExecutor(1)
    set_all(local, "near")
    with wrap_executor(plain, registry=registry) as wrapped:
        assert ("near", "near") == wrapped.submit(look).result(TIMEOUT)
    with pytest.raises(RuntimeError, match="shutdown"):
        plain.submit(look)


def test_shutdown_is_the_pools(registry):
    """`shutdown` through the wrapper is that of the pool."""
    plain = ThreadPoolExecutor(1)
    wrapped = wrap_executor(plain, registry=registry)
    wrapped.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        plain.submit(int)
    with pytest.raises(RuntimeError, match="shutdown"):
        wrapped.submit(int)


def test_another_kind_of_executor(registry, local, look):
    """Any executor that runs its work in threads of this process can be wrapped."""
    wrapped = wrap_executor(Immediate(), registry=registry)
    set_all(local, "near")
    assert ("near", "near") == wrapped.submit(look).result(TIMEOUT)
    assert [("near", "near")] * 2 == list(wrapped.map(look, range(2)))
    with pytest.raises(ValueError, match="mine"):
        wrapped.submit(fail).result(TIMEOUT)


def fail():
    """Fail as a task does."""
    raise ValueError("mine")


def test_map_captures_at_the_call(plain, registry, local, look):
    """`map` carries the context of its call, however late its results are asked for."""
    wrapped = wrap_executor(plain, registry=registry)
    set_all(local, "near")
    results = wrapped.map(look, (n for n in range(2)), timeout=TIMEOUT, chunksize=1)
    set_all(local, "later")
    assert [("near", "near")] * 2 == list(results)


def test_keyword_arguments_may_have_any_name(plain, registry):
    """No keyword argument of the task collides with one of ours (trap 12)."""
    names = ["fn", "func", "self", "args", "kwargs", "snapshot", "submit", "pool", "registry"]
    arguments = {name: name.upper() for name in names}
    wrapped = wrap_executor(plain, registry=registry)
    variable.set("near")
    assert arguments == wrapped.submit(lambda **k: k, **arguments).result(TIMEOUT)


def test_policy(plain, registry, local, look, on_worker):
    """The wrapper's policy holds for each task, within the policies in force at the submit."""
    wrapped = wrap_executor(plain, registry=registry, policy=policy(unchanged="local"))
    set_all(local, "near")
    assert ("near", None) == wrapped.submit(look).result(TIMEOUT)
    assert [("near", None)] == list(wrapped.map(look, [0]))
    with suppress("contextvars"):
        assert NOTHING == wrapped.submit(look).result(TIMEOUT)


def test_everything_suppressed(plain, registry, local, look):
    """With nothing to carry the pool is called as it is."""
    wrapped = wrap_executor(plain, registry=registry)
    set_all(local, "near")
    with suppress():
        assert NOTHING == wrapped.submit(look).result(TIMEOUT)
        assert [NOTHING] == list(wrapped.map(look, [0]))


@pytest.mark.parametrize(
    "how", [{}, {"policy": policy(unchanged="test.local")}], ids=["without", "with"]
)
def test_policy_under_install(how, plain, default_local, instrumented):
    """Installed instrumentation does not take the wrapper's policy away, nor carry twice."""
    default_local.value = "near"
    variable.set("near")

    def look(*_):
        return variable.get(), getattr(default_local, "value", None)

    wrapped = wrap_executor(plain, **how)
    expected = ("near", None if how else "near")
    assert expected == wrapped.submit(look).result(TIMEOUT)
    assert [expected] == list(wrapped.map(look, [0]))


def test_registry_under_install(plain, registry, local, look, instrumented):
    """Installed instrumentation does not replace the wrapper's registry by the default one."""
    set_all(local, "near")
    wrapped = wrap_executor(plain, registry=registry)
    assert ("near", "near") == wrapped.submit(look).result(TIMEOUT)
    empty = wrap_executor(plain, registry=Registry())
    assert NOTHING == empty.submit(look).result(TIMEOUT)
    assert [NOTHING] == list(empty.map(look, [0]))


def test_carrying_pools_come_back_as_they_are(plain, registry):
    """A pool that carries already is not wrapped again."""
    wrapped = wrap_executor(plain, registry=registry)
    assert wrapped is wrap_executor(wrapped)
    with ctxcarry.executor(1, registry=registry) as pool:
        assert pool is wrap_executor(pool)


@pytest.mark.parametrize(
    "wrong", [None, 3, ThreadPoolExecutor, object()], ids=["None", "number", "class", "object"]
)
def test_what_is_no_executor(wrong):
    """What cannot be submitted to is a TypeError."""
    with pytest.raises(TypeError, match="Executor"):
        wrap_executor(wrong)


@pytest.mark.parametrize("wrong", ["clear", object()])
def test_what_is_no_policy(wrong, plain):
    """What is no policy is a TypeError at once, as for `executor`."""
    with pytest.raises(TypeError, match=r"ctxcarry\.policy"):
        wrap_executor(plain, policy=wrong)


def test_bound_and_decorated_callables(plain, default_local):
    """A callable that brings its own context along keeps it."""
    wrapped = wrap_executor(plain)

    @ctxcarry.carry_context(only="contextvars")
    def only(*_):
        return variable.get(), getattr(default_local, "value", None)

    set_all(default_local, "bound")
    bound = ctxcarry.bind(lambda *_: (variable.get(), default_local.value))
    set_all(default_local, "near")
    assert ("bound", "bound") == wrapped.submit(bound).result(TIMEOUT)
    assert [("bound", "bound")] == list(wrapped.map(bound, [0]))
    for fn in (only, functools.partial(only, 1)):
        assert ("near", None) == wrapped.submit(fn).result(TIMEOUT)
        assert [("near", None)] == list(wrapped.map(fn, [0]))


def test_run_in_executor(plain, registry, local, look):
    """An event loop that runs things in the wrapper carries."""
    wrapped = wrap_executor(plain, registry=registry)

    async def main():
        set_all(local, "near")
        return await asyncio.get_running_loop().run_in_executor(wrapped, look)

    assert ("near", "near") == asyncio.run(main())


def test_worker_is_clean_after_a_task(plain, registry, local, look, on_worker):
    """The pool's thread is the same after a task as before."""
    wrapped = wrap_executor(plain, registry=registry)
    set_all(local, "near")
    wrapped.submit(lambda: set_all(local, "task")).result(TIMEOUT)
    assert NOTHING == on_worker(plain, look)


class Big:
    """Something that should not be kept."""


@pytest.fixture
def submit_big(local):
    """Return a function that submits from a context with a big object, and a weak reference."""

    def submit(pool, fn):
        def inside():
            big = Big()
            variable.set(big)
            return weakref.ref(big), pool.submit(fn)

        return Context().run(inside)

    return submit


def test_released_when_cancelled_in_the_queue(plain, registry, submit_big, occupied, is_collected):
    """A cancelled task lets go at once, while it is still in the queue (trap 8)."""
    wrapped = wrap_executor(plain, registry=registry)
    with occupied(plain):
        reference, future = submit_big(wrapped, int)
        assert future.cancel()
        assert is_collected(reference)
    with pytest.raises(CancelledError):
        future.result(0)


@pytest.mark.parametrize("fn", [int, fail])
def test_released_after_the_run(fn, plain, registry, submit_big, is_collected):
    """A future and an exception that are kept do not keep the context."""
    wrapped = wrap_executor(plain, registry=registry)
    reference, future = submit_big(wrapped, fn)
    error = future.exception(TIMEOUT)
    plain.submit(int).result(TIMEOUT)
    assert is_collected(reference)
    assert (fn is int) == (error is None)


def test_released_by_an_executor_that_refuses(registry, submit_big, is_collected):
    """A future that is done before `submit` returns keeps nothing, though its task never ran."""

    class Refusing(Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = Future()
            future.set_exception(ValueError("full"))
            return future

    reference, future = submit_big(wrap_executor(Refusing(), registry=registry), int)
    assert "full" == str(future.exception(0))
    assert is_collected(reference)
