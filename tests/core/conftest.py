"""Fixtures of the core tests: a clean slate around every test, and the usual carriers."""

import contextvars
import inspect
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import ctxcarry
from ctxcarry._policy import ambient_policy

TIMEOUT = 30


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run each test in a Context of its own, and check that it leaves no policy in force."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    def call():
        pyfuncitem.obj(**arguments)
        assert ambient_policy.get() is None

    contextvars.Context().run(call)
    return True


@pytest.fixture(autouse=True)
def clean_slate():
    """Fail a test that leaves carriers, boundaries or patches behind in this process."""

    def methods():
        return vars(ThreadPoolExecutor)["submit"], vars(ThreadPoolExecutor).get("map")

    carriers, installed = ctxcarry.carriers(), ctxcarry.installed()
    before = methods()
    patched = hasattr(before[0], "__wrapped__")
    yield
    left = ctxcarry.installed()
    ctxcarry.uninstall()
    after = methods()
    if patched:  # a module of decorated functions has been imported, and needs its patches
        ctxcarry.carry_context(lambda: None)
    assert carriers == ctxcarry.carriers()
    assert installed == left
    assert patched or before == after


@pytest.fixture
def contextvars_carrier():
    """Return the carrier of every ContextVar."""
    return next(c for c in ctxcarry.carriers() if c.name == "contextvars")


@pytest.fixture
def registry(contextvars_carrier):
    """Return a registry of its own that carries ContextVars."""
    registry = ctxcarry.Registry()
    registry.register(contextvars_carrier)
    return registry


@pytest.fixture
def local(registry):
    """Return a ``threading.local`` that `registry` carries as ``local``."""
    local = threading.local()
    registry.register(ctxcarry.ThreadLocalCarrier(local, name="local"))
    return local


@pytest.fixture
def default_local():
    """Return a ``threading.local`` that the default registry carries as ``test.local``."""
    local = threading.local()
    ctxcarry.register(ctxcarry.ThreadLocalCarrier(local, name="test.local"))
    yield local
    ctxcarry.unregister("test.local")


@pytest.fixture(params=["plain", "decorated", "installed"])
def instrumentation(request):
    """Run a test without patches, with those for decorated functions, and with all installed."""
    ctxcarry.uninstall()
    if request.param == "decorated":
        ctxcarry.carry_context(lambda: None)
    elif request.param == "installed":
        ctxcarry.install("executor")
    yield request.param
    ctxcarry.uninstall()


@pytest.fixture
def in_thread():
    """Return a function that runs another one in a new thread and returns what it returns."""

    def run(fn, /, *args, **kwargs):
        def body(done):
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        done = Future()
        thread = threading.Thread(target=body, args=(done,), daemon=True)
        thread.start()
        try:
            return done.result(TIMEOUT)
        finally:
            thread.join(TIMEOUT)
            del done  # an exception's traceback refers to this frame

    return run


def plainly_submit(pool, fn, /, *args):
    """Submit as a ThreadPoolExecutor does that nobody has patched or derived from."""
    return inspect.unwrap(ThreadPoolExecutor.submit)(pool, fn, *args)


@pytest.fixture
def on_worker():
    """Return a function that runs another one on a pool's thread as a plain pool does."""

    def run(pool, fn, /, *args):
        return plainly_submit(pool, fn, *args).result(TIMEOUT)

    return run


@pytest.fixture
def occupied():
    """Return a context manager that keeps all threads of a pool busy inside its block."""

    class Occupied:
        def __init__(self, pool, threads=1):
            self._release = threading.Event()
            started = threading.Barrier(threads + 1)

            def wait():
                started.wait(TIMEOUT)
                assert self._release.wait(TIMEOUT)

            self._busy = [plainly_submit(pool, wait) for _ in range(threads)]
            started.wait(TIMEOUT)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._release.set()
            for future in self._busy:
                future.result(TIMEOUT)

    return Occupied
